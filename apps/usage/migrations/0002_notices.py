import uuid

import django.db.models.deletion
import django.db.models.manager
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0002_plans"),
        ("tenants", "0004_window_and_connections"),
        ("usage", "0001_ledger"),
    ]

    operations = [
        migrations.CreateModel(
            name="SoftLimitNotice",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("quota_ref", models.CharField(max_length=64, verbose_name="quota's id")),
                ("quota_label", models.CharField(max_length=200, verbose_name="quota")),
                ("period", models.CharField(help_text="By the tenant's clock.", max_length=64)),
                (
                    "spent_micros",
                    models.PositiveBigIntegerField(help_text="Millionths of the currency unit.", verbose_name="spent"),
                ),
                (
                    "limit_micros",
                    models.PositiveBigIntegerField(
                        help_text="Millionths of the currency unit.", verbose_name="soft budget"
                    ),
                ),
                ("passed_at", models.DateTimeField()),
                (
                    "quota",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="quotas.quota",
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
                "verbose_name": "notice of a soft budget",
                "verbose_name_plural": "notices of soft budgets",
                "ordering": ["-passed_at"],
                "default_manager_name": "all_tenants",
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name="NoticeDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("channel", models.CharField(choices=[("email", "Email"), ("webhook", "Webhook")], max_length=16)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(
                        blank=True, help_text="Empty: delivered, or given up after the last try.", null=True
                    ),
                ),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, max_length=500)),
                (
                    "notice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="usage.softlimitnotice",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["notice", "channel"],
            },
        ),
        migrations.AddConstraint(
            model_name="softlimitnotice",
            constraint=models.UniqueConstraint(fields=("quota_ref", "period"), name="soft_limit_notice_once"),
        ),
        migrations.AddIndex(
            model_name="noticedelivery",
            index=models.Index(fields=["next_attempt_at"], name="notice_delivery_due"),
        ),
        migrations.AddConstraint(
            model_name="noticedelivery",
            constraint=models.UniqueConstraint(fields=("notice", "channel"), name="notice_delivery_once"),
        ),
        migrations.AddConstraint(
            model_name="noticedelivery",
            constraint=models.CheckConstraint(
                condition=models.Q(("channel__in", ["email", "webhook"])), name="notice_delivery_channel_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="noticedelivery",
            constraint=models.CheckConstraint(
                condition=models.Q(("delivered_at__isnull", True), ("next_attempt_at__isnull", True), _connector="OR"),
                name="notice_delivery_ends_with_success",
            ),
        ),
    ]
