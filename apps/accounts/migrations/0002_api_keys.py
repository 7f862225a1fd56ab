import uuid

import django.db.models.deletion
import django.db.models.manager
import django_prometheus.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_user"),
        ("deployments", "0001_deployments_workers"),
        ("tenants", "0001_tenants_members_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(help_text="What uses it, e.g. “billing service”.", max_length=100)),
                ("public_id", models.CharField(editable=False, max_length=12, unique=True)),
                ("secret_sha256", models.BinaryField(max_length=32)),
                ("scopes", models.JSONField(default=list)),
                (
                    "is_restricted",
                    models.BooleanField(
                        default=False,
                        help_text="Off: it may use every deployment that its tenant sees.",
                        verbose_name="only the deployments chosen here",
                    ),
                ),
                ("expires_at", models.DateTimeField(blank=True, help_text="Empty: does not expire.", null=True)),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "allowed_deployments",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Counts only for a restricted key.",
                        related_name="+",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "rotated_from",
                    models.OneToOneField(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="successor",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="api_keys", to="tenants.tenant"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        help_text="The member it belongs to; empty for a key of the tenant itself.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="member",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "ordering": ["-created_at"],
                "default_manager_name": "all_tenants",
                "indexes": [models.Index(fields=["tenant", "-created_at"], name="api_key_by_tenant")],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("api_key"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
