"""Prompt caches of tenants."""

import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.manager
import django_prometheus.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("caching", "0001_response_cache"),
        ("deployments", "0004_drafts"),
        ("tenants", "0010_prompt_cache_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="PromptCache",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        help_text="What callers put into “prompt_cache”: its messages then go before theirs.",
                        max_length=100,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z0-9][A-Za-z0-9._:-]*\\Z", "Letters, digits and . _ : - only."
                            )
                        ],
                    ),
                ),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1, editable=False, help_text="One more with each change of what it says."
                    ),
                ),
                (
                    "system_prompt",
                    models.TextField(blank=True, validators=[django.core.validators.MaxLengthValidator(1000000)]),
                ),
                (
                    "tools_text",
                    models.TextField(
                        blank=True,
                        help_text="How the model is to use tools, as text; it follows the system prompt.",
                        validators=[django.core.validators.MaxLengthValidator(1000000)],
                        verbose_name="tools",
                    ),
                ),
                (
                    "examples",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text='Messages that show how it is done: [{"role": "user", "content": "…"}, {"role": "assistant", …}]',
                    ),
                ),
                (
                    "is_pinned",
                    models.BooleanField(
                        default=False,
                        help_text="Every worker computes it before its first request, and it is kept warm. Off: the first request computes it, and it stays until others need the memory.",
                        verbose_name="pinned",
                    ),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Off: its name is unknown to callers, and it is not kept warm.",
                        verbose_name="active",
                    ),
                ),
                (
                    "token_count",
                    models.PositiveIntegerField(
                        blank=True,
                        editable=False,
                        help_text="As the deployment's model tokenises it.",
                        null=True,
                        verbose_name="tokens",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="prompt_caches",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        help_text="Nobody else's requests find it.",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="prompt_caches",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "prompt cache",
                "ordering": ["tenant", "deployment", "name"],
                "default_manager_name": "all_tenants",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "deployment", "name"),
                        name="prompt_cache_name_once",
                        violation_error_message="The tenant has a prompt cache of this name for the deployment already.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("version__gte", 1)), name="prompt_cache_version_positive"
                    ),
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("prompt_cache"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
