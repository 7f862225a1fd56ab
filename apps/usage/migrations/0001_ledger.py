import django.db.models.deletion
import django.db.models.manager
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0002_api_keys"),
        ("deployments", "0003_prices"),
        ("tenants", "0003_plan_webhook"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="UsageRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_ref", models.CharField(max_length=64, verbose_name="tenant's id")),
                ("tenant_label", models.CharField(max_length=200, verbose_name="tenant's name")),
                ("api_key_ref", models.CharField(blank=True, max_length=64, verbose_name="API key's id")),
                ("api_key_label", models.CharField(blank=True, max_length=200, verbose_name="API key's name")),
                ("user_ref", models.CharField(blank=True, max_length=64, verbose_name="member's id")),
                ("user_label", models.CharField(blank=True, max_length=200, verbose_name="member's name")),
                ("deployment_ref", models.CharField(blank=True, max_length=64, verbose_name="deployment's id")),
                ("deployment_label", models.CharField(max_length=200, verbose_name="deployment's name")),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "cached_tokens",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Those of the prompt that came from the prefix cache."
                    ),
                ),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "cost_micros",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="Millionths of the currency unit, by the prices at admission.",
                        verbose_name="cost",
                    ),
                ),
                ("stream_id", models.CharField(max_length=64, unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("finished", "Finished"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("replaced", "Replaced"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "finish_reason",
                    models.CharField(
                        choices=[
                            ("stop", "Stop"),
                            ("length", "Length"),
                            ("tool_calls", "Tool calls"),
                            ("content_filter", "Content filter"),
                            ("abort", "Abort"),
                            ("error", "Error"),
                        ],
                        max_length=16,
                    ),
                ),
                ("admitted_at", models.DateTimeField(help_text="Budgets and sums count it there.")),
                ("ended_at", models.DateTimeField(db_index=True)),
                ("recorded_at", models.DateTimeField(auto_now_add=True)),
                (
                    "api_key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="member",
                    ),
                ),
            ],
            options={
                "verbose_name": "ended stream",
                "ordering": ["-ended_at", "-id"],
                "default_manager_name": "all_tenants",
                "indexes": [models.Index(fields=["tenant", "-ended_at"], name="usage_record_by_tenant")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["finished", "failed", "cancelled", "replaced"])),
                        name="usage_record_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("finish_reason__in", ["stop", "length", "tool_calls", "content_filter", "abort", "error"])
                        ),
                        name="usage_record_finish_reason_known",
                    ),
                ],
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name="UsageRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tenant_ref", models.CharField(max_length=64, verbose_name="tenant's id")),
                ("tenant_label", models.CharField(max_length=200, verbose_name="tenant's name")),
                ("api_key_ref", models.CharField(blank=True, max_length=64, verbose_name="API key's id")),
                ("api_key_label", models.CharField(blank=True, max_length=200, verbose_name="API key's name")),
                ("user_ref", models.CharField(blank=True, max_length=64, verbose_name="member's id")),
                ("user_label", models.CharField(blank=True, max_length=200, verbose_name="member's name")),
                ("deployment_ref", models.CharField(blank=True, max_length=64, verbose_name="deployment's id")),
                ("deployment_label", models.CharField(max_length=200, verbose_name="deployment's name")),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "cached_tokens",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Those of the prompt that came from the prefix cache."
                    ),
                ),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "cost_micros",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="Millionths of the currency unit, by the prices at admission.",
                        verbose_name="cost",
                    ),
                ),
                ("bucket", models.CharField(choices=[("hour", "Hour"), ("day", "Day")], max_length=8)),
                (
                    "start_at",
                    models.DateTimeField(help_text="By the tenant's clock; streams count where they were admitted."),
                ),
                ("requests", models.PositiveBigIntegerField(default=0)),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "sum of usage",
                "verbose_name_plural": "sums of usage",
                "ordering": ["-start_at", "tenant_label"],
                "default_manager_name": "all_tenants",
                "indexes": [models.Index(fields=["bucket", "start_at"], name="usage_rollup_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "tenant_ref",
                            "bucket",
                            "start_at",
                            "api_key_ref",
                            "user_ref",
                            "deployment_ref",
                            "deployment_label",
                        ),
                        name="usage_rollup_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bucket__in", ["hour", "day"])), name="usage_rollup_bucket_known"
                    ),
                ],
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
