import uuid

import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
import django.db.models.manager
import django_prometheus.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "slug",
                    models.SlugField(
                        help_text="Short name for URLs, metrics and logs. Stays as it is.", max_length=63, unique=True
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Keys and members of an inactive tenant are refused within a second.",
                        verbose_name="active",
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(
                        default="UTC",
                        help_text="Budgets begin and end by this clock, e.g. Europe/Zurich.",
                        max_length=64,
                    ),
                ),
                (
                    "retention_days",
                    models.PositiveIntegerField(
                        default=30,
                        help_text="Days until conversations and usage details are deleted.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(3650),
                        ],
                    ),
                ),
                (
                    "log_retention_seconds",
                    models.PositiveIntegerField(
                        default=3600,
                        help_text="Seconds that a finished stream can still be resumed or read again. At least 3600.",
                        validators=[
                            django.core.validators.MinValueValidator(3600),
                            django.core.validators.MaxValueValidator(604800),
                        ],
                    ),
                ),
                (
                    "stream_window",
                    models.PositiveIntegerField(
                        default=512,
                        help_text="Tokens that the engine may be ahead of what a client took. Smaller saves GPU time on slow clients.",
                        validators=[
                            django.core.validators.MinValueValidator(8),
                            django.core.validators.MaxValueValidator(65536),
                        ],
                    ),
                ),
                (
                    "detached_policy",
                    models.CharField(
                        choices=[
                            ("finish", "Finish the answer"),
                            ("continue", "Continue for some tokens, then suspend"),
                            ("abort", "Abort after a grace time"),
                        ],
                        default="finish",
                        help_text="What happens to an answer when nobody is reading it any more.",
                        max_length=16,
                    ),
                ),
                (
                    "detached_tokens",
                    models.PositiveIntegerField(
                        default=256,
                        help_text="Only for “continue”: tokens that are generated before the stream is suspended.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(65536),
                        ],
                    ),
                ),
                (
                    "detached_grace_seconds",
                    models.FloatField(
                        default=30.0,
                        help_text="Only for “abort”: seconds that a client has to come back.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                    ),
                ),
                (
                    "stall_timeout_seconds",
                    models.FloatField(
                        default=60.0,
                        help_text="A client that takes nothing for this long is disconnected.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("log_retention_seconds__gte", 3600)),
                        name="tenant_log_retention_at_least_an_hour",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("stream_window__gte", 8)), name="tenant_stream_window_not_tiny"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("retention_days__gte", 1)), name="tenant_retention_days_positive"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("detached_policy__in", ["finish", "continue", "abort"])),
                        name="tenant_detached_policy_known",
                    ),
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("tenant"), models.Model),
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[("owner", "Owner"), ("admin", "Admin"), ("member", "Member")],
                        default="member",
                        help_text="Owners and admins manage members, keys and quotas of their tenant; members use it.",
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="memberships", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["tenant", "user"],
                "default_manager_name": "all_tenants",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "user"), name="membership_once_per_tenant"),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["owner", "admin", "member"])), name="membership_role_known"
                    ),
                ],
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name="AuditEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("created_at", models.DateTimeField(auto_now_add=True, db_index=True)),
                ("actor_label", models.CharField(help_text="Who it was, as named at that time.", max_length=254)),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("tenant.created", "Tenant created"),
                            ("tenant.changed", "Tenant changed"),
                            ("member.added", "Member added"),
                            ("member.changed", "Member's role changed"),
                            ("member.removed", "Member removed"),
                            ("user.created", "User created"),
                            ("user.changed", "User changed"),
                            ("api_key.created", "API key created"),
                            ("api_key.changed", "API key changed"),
                            ("api_key.rotated", "API key rotated"),
                            ("api_key.revoked", "API key revoked"),
                            ("deployment.created", "Deployment created"),
                            ("deployment.changed", "Deployment changed"),
                            ("deployment.deleted", "Deployment deleted"),
                            ("quota.created", "Quota created"),
                            ("quota.changed", "Quota changed"),
                            ("quota.deleted", "Quota deleted"),
                        ],
                        db_index=True,
                        max_length=64,
                    ),
                ),
                ("object_type", models.CharField(max_length=64)),
                ("object_id", models.CharField(max_length=64)),
                ("object_label", models.CharField(max_length=254)),
                (
                    "details",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        encoder=django.core.serializers.json.DjangoJSONEncoder,
                        help_text="What changed, from and to; never a secret.",
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
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
                "ordering": ["-created_at", "-id"],
                "default_manager_name": "all_tenants",
                "indexes": [
                    models.Index(fields=["tenant", "-created_at"], name="audit_by_tenant"),
                    models.Index(fields=["object_type", "object_id"], name="audit_by_object"),
                ],
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
