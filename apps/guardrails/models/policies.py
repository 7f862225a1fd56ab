"""Policies, where they apply, and every version that they ever had."""

import uuid

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.accounts.models import ApiKey, User
from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import FailureMode, InputTrip, PolicyMode
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant

MAX_CHUNK = 512
MAX_DEADLINE_SECONDS = 60.0


class GuardrailPolicy(ExportModelOperationsMixin("guardrail_policy"), models.Model):  # type: ignore[misc]
    """Rules for what may be said, of one tenant or for everybody. Where several policies apply, all of them do."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="guardrail_policies",
        help_text=_("Whose requests and answers it judges. Empty: those of all tenants."),
    )
    name = models.CharField(max_length=100, help_text=_("Callers see it in x-headrace-applied-guardrails."))
    mode = models.CharField(
        max_length=16,
        choices=PolicyMode,
        default=PolicyMode.DRAFT,
        help_text=_(
            "What is saved acts on new answers within a second; running ones keep the version they began with."
        ),
    )
    failure_mode = models.CharField(
        _("when a judge fails"),
        max_length=16,
        choices=FailureMode,
        default=FailureMode.CLOSED,
        help_text=_("Concerns rules of the kinds topic, insults, language and question."),
    )
    on_input_trip = models.CharField(
        _("when a request is blocked"), max_length=16, choices=InputTrip, default=InputTrip.REFUSE
    )
    replacement = models.CharField(
        _("replacement text"),
        max_length=2000,
        default="I cannot help with that.",
        help_text=_("Stands in the place of what is blocked, where the rule has no text of its own."),
    )
    chunk_size = models.PositiveIntegerField(
        default=16,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CHUNK)],
        help_text=_("Tokens between two looks of the rules that judge windows."),
    )
    context_size = models.PositiveIntegerField(
        default=8,
        validators=[MaxValueValidator(MAX_CHUNK)],
        help_text=_("Tokens that two windows share. What is longer can hide on the edge between them."),
    )
    judge_deadline_seconds = models.FloatField(
        _("judge's deadline (s)"),
        default=5.0,
        validators=[MinValueValidator(0.05), MaxValueValidator(MAX_DEADLINE_SECONDS)],
        help_text=_("A judge that takes longer for a window has failed."),
    )
    stream_first = models.BooleanField(
        _("UNSAFE: show text before it is judged (stream_first)"),
        default=False,
        help_text=_(
            "Readers see text at once and may have read it before it is taken back. Off: text waits for its window."
        ),
    )
    is_restricted = models.BooleanField(
        _("only where it is attached"),
        default=False,
        help_text=_("Off: for everything of its tenant, or of everybody where it has none."),
    )
    version = models.PositiveIntegerField(
        default=0, editable=False, help_text=_("Number of its newest version, which is the one that acts.")
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    all_tenants = models.Manager["GuardrailPolicy"]()
    objects = TenantManager["GuardrailPolicy"]()

    class Meta:
        ordering = ["name", "id"]
        default_manager_name = "all_tenants"
        verbose_name = _("guardrail policy")
        verbose_name_plural = _("guardrail policies")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(tenant__isnull=False),
                name="guardrail_policy_name_once_per_tenant",
                violation_error_message=_("The tenant has a policy of this name already."),
            ),
            models.UniqueConstraint(
                fields=["name"],
                condition=Q(tenant__isnull=True),
                name="guardrail_policy_name_once_for_everybody",
                violation_error_message=_("There is a policy of this name for everybody already."),
            ),
            models.CheckConstraint(condition=Q(mode__in=PolicyMode.values), name="guardrail_policy_mode_known"),
            models.CheckConstraint(
                condition=Q(failure_mode__in=FailureMode.values, on_input_trip__in=InputTrip.values),
                name="guardrail_policy_choices_known",
            ),
            models.CheckConstraint(
                condition=Q(chunk_size__gte=1, chunk_size__lte=MAX_CHUNK, context_size__lte=MAX_CHUNK),
                name="guardrail_policy_window_in_range",
            ),
            models.CheckConstraint(
                condition=Q(judge_deadline_seconds__gt=0, judge_deadline_seconds__lte=MAX_DEADLINE_SECONDS),
                name="guardrail_policy_deadline_in_range",
            ),
            models.CheckConstraint(condition=~Q(replacement=""), name="guardrail_policy_has_a_replacement"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        """Whether it judges anything, be it as a shadow."""
        return self.mode != PolicyMode.DRAFT


class PolicyVersion(models.Model):
    """What a policy said from one save to the next. Rows are only ever added."""

    policy = models.ForeignKey(GuardrailPolicy, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    mode = models.CharField(max_length=16, choices=PolicyMode)
    body = models.BinaryField(editable=False)
    digest = models.CharField(
        max_length=64, unique=True, help_text=_("The name under which gateways and workers know it.")
    )
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_by_label = models.CharField(_("made by"), max_length=254)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["policy", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["policy", "number"], name="policy_version_number_once"),
            models.CheckConstraint(condition=Q(mode__in=PolicyMode.values), name="policy_version_mode_known"),
        ]

    def __str__(self) -> str:
        return f"{self.policy} v{self.number}"


_TARGETS = ("tenant", "deployment", "api_key")
_COMBINATIONS = (("tenant",), ("deployment",), ("tenant", "deployment"), ("api_key",), ("deployment", "api_key"))


class GuardrailAttachment(models.Model):
    """Where a restricted policy applies: to what fits all that is named here."""

    policy = models.ForeignKey(GuardrailPolicy, on_delete=models.CASCADE, related_name="attachments")
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text=_("Only for a policy of no tenant."),
    )
    deployment = models.ForeignKey(ModelDeployment, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    api_key = models.ForeignKey(
        ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="+", verbose_name=_("API key")
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["policy", "created_at", "id"]
        verbose_name = _("attachment")
        constraints = [
            models.CheckConstraint(
                condition=Q(*[(f"{name}__isnull", False) for name in _TARGETS], _connector=Q.OR),
                name="guardrail_attachment_names_something",
                violation_error_message=_("Choose a tenant, a deployment or a key, or remove the line."),
            ),
            models.CheckConstraint(
                condition=Q(tenant__isnull=True) | Q(api_key__isnull=True),
                name="guardrail_attachment_key_says_the_tenant",
                violation_error_message=_("A key belongs to its tenant; leave the tenant empty."),
            ),
            *(
                models.UniqueConstraint(
                    fields=["policy", *named],
                    condition=Q(**{f"{name}__isnull": name not in named for name in _TARGETS}),
                    name=f"guardrail_attachment_once_per_{'_and_'.join(named)}",
                    violation_error_message=_("It is attached there already."),
                )
                for named in _COMBINATIONS
            ),
        ]

    def __str__(self) -> str:
        return " · ".join(str(target) for target in (self.tenant, self.api_key, self.deployment) if target is not None)

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: The policy is one tenant's, and the target is another's.
        """
        owner = self.policy.tenant_id
        if owner is None:
            return
        if self.tenant_id is not None:
            raise ValidationError({"tenant": _("The policy has a tenant; leave this empty.")}, code="has_tenant")
        if self.api_key is not None and self.api_key.tenant_id != owner:
            raise ValidationError({"api_key": _("Belongs to another tenant.")}, code="other_tenant")
        deployment = self.deployment
        if (
            deployment is not None
            and deployment.is_restricted
            and not deployment.visible_tenants.filter(pk=owner).exists()
        ):
            raise ValidationError({"deployment": _("The tenant does not see it.")}, code="invisible")
