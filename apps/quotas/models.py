"""Quotas: who may send how much."""

import uuid
from decimal import Decimal

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.accounts.models import ApiKey
from apps.deployments.models import ModelDeployment
from apps.quotas.enums import BudgetDuration, Priority, QuotaScope
from apps.tenants.managers import TenantManager
from apps.tenants.models import Membership, Tenant

_LIMITS = (
    "rpm_limit",
    "tpm_limit",
    "max_parallel_requests",
    "max_budget",
    "soft_budget",
    "token_budget",
)
MAX_WEIGHT = 100
_TARGETS = ("tenant", "membership", "api_key")
_NO_BUDGET = Q(max_budget__isnull=True, soft_budget__isnull=True, token_budget__isnull=True)


def _scope_has(scope: QuotaScope, *present: str) -> Q:
    """Whether a row of that scope names exactly these targets."""
    return Q(scope=scope) & Q(**{f"{name}__isnull": name not in present for name in _TARGETS})


class Plan(ExportModelOperationsMixin("plan"), models.Model):  # type: ignore[misc]
    """What tenants get of a busy deployment beside each other. Quotas limit; a plan shares out."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, unique=True)
    weight = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)],
        help_text=_(
            "Share of a busy deployment beside other tenants of the same priority: a tenant of weight 2 gets twice"
            " the tokens of one of weight 1. 1 to 100."
        ),
    )
    priority = models.PositiveSmallIntegerField(
        choices=Priority,
        default=Priority.NORMAL,
        help_text=_("Waiting requests of a higher priority go first; those that wait long rise."),
    )
    request_priorities = models.JSONField(
        _("priorities that a request may ask for"),
        default=list,
        blank=True,
        help_text=_("Besides the one above, which a request has that asks for none."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(weight__gte=1, weight__lte=MAX_WEIGHT), name="plan_weight_in_range"),
            models.CheckConstraint(condition=Q(priority__in=Priority.values), name="plan_priority_known"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks what a column cannot, and sorts the priorities.

        Raises:
            ValidationError: A priority is not known.
        """
        allowed = self.request_priorities
        if not isinstance(allowed, list) or not all(value in Priority.values for value in allowed):
            raise ValidationError({"request_priorities": _("Choose from the known ones.")}, code="unknown_priority")
        self.request_priorities = sorted({int(value) for value in allowed})


class Quota(ExportModelOperationsMixin("quota"), models.Model):  # type: ignore[misc]
    """Limits of one target. A request must pass every quota that covers it; empty means no limit of that kind."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    scope = models.CharField(max_length=16, choices=QuotaScope, default=QuotaScope.TENANT)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    membership = models.ForeignKey(
        Membership,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="quotas",
        verbose_name=_("member"),
    )
    api_key = models.ForeignKey(
        ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas", verbose_name=_("API key")
    )
    deployment = models.ForeignKey(
        ModelDeployment,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="quotas",
        help_text=_("Counts only requests to this deployment. Empty: to all of them."),
    )
    rpm_limit = models.PositiveIntegerField(
        _("requests per minute"), null=True, blank=True, validators=[MinValueValidator(1)]
    )
    tpm_limit = models.PositiveIntegerField(
        _("tokens per minute"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Prompt and answer together; the answer's length is reserved when a request comes in."),
    )
    max_parallel_requests = models.PositiveIntegerField(
        _("parallel requests"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("More than these wait for their turn; they are not refused."),
    )
    max_budget = models.DecimalField(
        _("budget"),
        max_digits=14,
        decimal_places=6,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_("Money per period; requests beyond it are refused until the next one."),
    )
    soft_budget = models.DecimalField(
        max_digits=14,
        decimal_places=6,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_("Money per period; passing it is announced, nothing is refused."),
    )
    token_budget = models.PositiveBigIntegerField(
        null=True, blank=True, help_text=_("Tokens per period, prompt and answer together.")
    )
    budget_duration = models.CharField(
        _("budget period"),
        max_length=8,
        choices=BudgetDuration,
        blank=True,
        help_text=_("Calendar period, by the tenant's clock."),
    )
    override_factor = models.DecimalField(
        max_digits=6,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(Decimal("0.01"))],
        help_text=_("For a while, so many times the limits above. 2 doubles them, 0.5 halves them."),
    )
    override_until = models.DateTimeField(null=True, blank=True, help_text=_("Then the limits above count again."))
    override_reason = models.CharField(max_length=200, blank=True, help_text=_("For the audit trail."))
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    all_tenants = models.Manager["Quota"]()
    objects = TenantManager["Quota"]()

    class Meta:
        ordering = ["scope", "tenant", "created_at"]
        default_manager_name = "all_tenants"
        constraints = [
            models.CheckConstraint(
                condition=(_scope_has(QuotaScope.GLOBAL) & Q(deployment__isnull=True))
                | (_scope_has(QuotaScope.DEPLOYMENT) & Q(deployment__isnull=False))
                | _scope_has(QuotaScope.TENANT, "tenant")
                | _scope_has(QuotaScope.MEMBER, "tenant", "membership")
                | _scope_has(QuotaScope.API_KEY, "tenant", "api_key"),
                name="quota_scope_matches_target",
                violation_error_message=_("The scope and the chosen target do not fit together."),
            ),
            models.CheckConstraint(
                condition=Q(*[(f"{name}__isnull", False) for name in _LIMITS], _connector=Q.OR),
                name="quota_limits_something",
                violation_error_message=_("Set at least one limit."),
            ),
            models.CheckConstraint(
                condition=Q(override_factor__isnull=True, override_until__isnull=True)
                | Q(override_factor__isnull=False, override_until__isnull=False),
                name="quota_override_has_an_end",
                violation_error_message=_("An override and its end belong together."),
            ),
            models.CheckConstraint(
                condition=(_NO_BUDGET & Q(budget_duration=""))
                | (~_NO_BUDGET & Q(budget_duration__in=BudgetDuration.values)),
                name="quota_budget_has_a_period",
                violation_error_message=_("A budget and its period belong together."),
            ),
            *(
                models.UniqueConstraint(
                    fields=[*fields],
                    condition=Q(scope=scope, deployment__isnull=everywhere),
                    name=f"quota_once_per_{scope.value}{'' if everywhere else '_and_deployment'}",
                    violation_error_message=_("There is a quota for this target already."),
                )
                for scope, everywhere, fields in (
                    (QuotaScope.GLOBAL, True, ("scope",)),
                    (QuotaScope.DEPLOYMENT, False, ("deployment",)),
                    (QuotaScope.TENANT, True, ("tenant",)),
                    (QuotaScope.TENANT, False, ("tenant", "deployment")),
                    (QuotaScope.MEMBER, True, ("membership",)),
                    (QuotaScope.MEMBER, False, ("membership", "deployment")),
                    (QuotaScope.API_KEY, True, ("api_key",)),
                    (QuotaScope.API_KEY, False, ("api_key", "deployment")),
                )
            ),
        ]

    def __str__(self) -> str:
        return f"{self.target_label} → {self.deployment}" if self.deployment else self.target_label

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: The member or key belongs to another tenant.
        """
        for name in ("membership", "api_key"):
            target = getattr(self, name)
            if target is not None and target.tenant_id != self.tenant_id:
                raise ValidationError({name: _("Belongs to another tenant.")}, code="other_tenant")

    @property
    def target_label(self) -> str:
        """Whom it limits, in words."""
        return str(self.api_key or self.membership or self.tenant or self.get_scope_display())
