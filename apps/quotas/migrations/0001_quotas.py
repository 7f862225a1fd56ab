import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.manager
import django_prometheus.models
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0002_api_keys"),
        ("deployments", "0001_deployments_workers"),
        ("tenants", "0001_tenants_members_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="Quota",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("global", "Everybody together"),
                            ("deployment", "One deployment, all tenants together"),
                            ("tenant", "One tenant"),
                            ("member", "One member of a tenant"),
                            ("api_key", "One API key"),
                        ],
                        default="tenant",
                        max_length=16,
                    ),
                ),
                (
                    "rpm_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="requests per minute",
                    ),
                ),
                (
                    "tpm_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Prompt and answer together; the answer's length is reserved when a request comes in.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="tokens per minute",
                    ),
                ),
                (
                    "max_parallel_requests",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="More than these wait for their turn; they are not refused.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="parallel requests",
                    ),
                ),
                (
                    "max_budget",
                    models.DecimalField(
                        blank=True,
                        decimal_places=6,
                        help_text="Money per period; requests beyond it are refused until the next one.",
                        max_digits=14,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                        verbose_name="budget",
                    ),
                ),
                (
                    "soft_budget",
                    models.DecimalField(
                        blank=True,
                        decimal_places=6,
                        help_text="Money per period; passing it is announced, nothing is refused.",
                        max_digits=14,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "token_budget",
                    models.PositiveBigIntegerField(
                        blank=True, help_text="Tokens per period, prompt and answer together.", null=True
                    ),
                ),
                (
                    "budget_duration",
                    models.CharField(
                        blank=True,
                        choices=[("1h", "Hour"), ("1d", "Day"), ("1w", "Week (from Monday)"), ("1mo", "Month")],
                        help_text="Calendar period, by the tenant's clock.",
                        max_length=8,
                        verbose_name="budget period",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "api_key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quotas",
                        to="accounts.apikey",
                        verbose_name="API key",
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        help_text="Counts only requests to this deployment. Empty: to all of them.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quotas",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quotas",
                        to="tenants.membership",
                        verbose_name="member",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quotas",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ["scope", "tenant", "created_at"],
                "default_manager_name": "all_tenants",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("scope", "global"),
                                ("api_key__isnull", True),
                                ("membership__isnull", True),
                                ("tenant__isnull", True),
                                ("deployment__isnull", True),
                            ),
                            models.Q(
                                ("scope", "deployment"),
                                ("api_key__isnull", True),
                                ("membership__isnull", True),
                                ("tenant__isnull", True),
                                ("deployment__isnull", False),
                            ),
                            models.Q(
                                ("scope", "tenant"),
                                ("api_key__isnull", True),
                                ("membership__isnull", True),
                                ("tenant__isnull", False),
                            ),
                            models.Q(
                                ("scope", "member"),
                                ("api_key__isnull", True),
                                ("membership__isnull", False),
                                ("tenant__isnull", False),
                            ),
                            models.Q(
                                ("scope", "api_key"),
                                ("api_key__isnull", False),
                                ("membership__isnull", True),
                                ("tenant__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="quota_scope_matches_target",
                        violation_error_message="The scope and the chosen target do not fit together.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("rpm_limit__isnull", False),
                            ("tpm_limit__isnull", False),
                            ("max_parallel_requests__isnull", False),
                            ("max_budget__isnull", False),
                            ("soft_budget__isnull", False),
                            ("token_budget__isnull", False),
                            _connector="OR",
                        ),
                        name="quota_limits_something",
                        violation_error_message="Set at least one limit.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("max_budget__isnull", True),
                                ("soft_budget__isnull", True),
                                ("token_budget__isnull", True),
                                ("budget_duration", ""),
                            ),
                            models.Q(
                                models.Q(
                                    ("max_budget__isnull", True),
                                    ("soft_budget__isnull", True),
                                    ("token_budget__isnull", True),
                                    _negated=True,
                                ),
                                ("budget_duration__in", ["1h", "1d", "1w", "1mo"]),
                            ),
                            _connector="OR",
                        ),
                        name="quota_budget_has_a_period",
                        violation_error_message="A budget and its period belong together.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", True), ("scope", "global")),
                        fields=("scope",),
                        name="quota_once_per_global",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", False), ("scope", "deployment")),
                        fields=("deployment",),
                        name="quota_once_per_deployment_and_deployment",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", True), ("scope", "tenant")),
                        fields=("tenant",),
                        name="quota_once_per_tenant",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", False), ("scope", "tenant")),
                        fields=("tenant", "deployment"),
                        name="quota_once_per_tenant_and_deployment",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", True), ("scope", "member")),
                        fields=("membership",),
                        name="quota_once_per_member",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", False), ("scope", "member")),
                        fields=("membership", "deployment"),
                        name="quota_once_per_member_and_deployment",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", True), ("scope", "api_key")),
                        fields=("api_key",),
                        name="quota_once_per_api_key",
                        violation_error_message="There is a quota for this target already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("deployment__isnull", False), ("scope", "api_key")),
                        fields=("api_key", "deployment"),
                        name="quota_once_per_api_key_and_deployment",
                        violation_error_message="There is a quota for this target already.",
                    ),
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("quota"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
    ]
