"""Policies of the response cache."""

import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.manager
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("deployments", "0004_drafts"),
        ("tenants", "0009_response_cache_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="ResponseCachePolicy",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "enabled",
                    models.BooleanField(
                        default=True,
                        help_text="Off: nothing is kept or given, also where a policy for all deployments says so.",
                    ),
                ),
                (
                    "ttl_minutes",
                    models.PositiveSmallIntegerField(
                        default=30,
                        help_text="How long an answer is given again, 15 to 60; never longer than the tenant's streams are kept.",
                        validators=[
                            django.core.validators.MinValueValidator(15),
                            django.core.validators.MaxValueValidator(60),
                        ],
                        verbose_name="minutes",
                    ),
                ),
                (
                    "static_rule",
                    models.CharField(
                        choices=[
                            ("temperature_zero", "Requests at temperature 0, or that ask for it"),
                            ("opt_in", "Only requests that ask for it"),
                        ],
                        default="temperature_zero",
                        help_text="Only static requests have answers that are kept. Never those with personal data or an end user.",
                        max_length=24,
                        verbose_name="static are",
                    ),
                ),
                (
                    "count_requests",
                    models.BooleanField(
                        default=True,
                        help_text="In limits of requests per minute.",
                        verbose_name="answers from the cache count as requests",
                    ),
                ),
                (
                    "count_tokens",
                    models.BooleanField(
                        default=False,
                        help_text="In limits and budgets; prompt tokens at the price of cached ones.",
                        verbose_name="their tokens count and are charged",
                    ),
                ),
                (
                    "max_mebibytes",
                    models.PositiveIntegerField(
                        default=64,
                        help_text="Of all answers kept for the tenant. Those used longest ago go first; at 90 % the log says so.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(4096),
                        ],
                        verbose_name="room (MiB)",
                    ),
                ),
                ("generation", models.PositiveBigIntegerField(default=0, editable=False)),
                ("purged_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: all of them that have no policy of their own.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="response_cache_policies",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="response_cache_policies",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "response cache policy",
                "verbose_name_plural": "response cache policies",
                "ordering": ["tenant", "deployment"],
                "default_manager_name": "all_tenants",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "deployment"),
                        name="response_cache_once_per_deployment",
                        violation_error_message="There is a policy for this tenant and deployment already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", True)),
                        fields=("tenant",),
                        name="response_cache_once_for_all_deployments",
                        violation_error_message="There is a policy for all deployments of this tenant already.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("ttl_minutes__gte", 15), ("ttl_minutes__lte", 60)),
                        name="response_cache_ttl_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("static_rule__in", ["temperature_zero", "opt_in"])),
                        name="response_cache_static_rule_known",
                    ),
                ],
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
