"""What guardrails did. Rows are added by the collector alone; people mark what was a false positive."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.accounts.models import User
from apps.guardrails.enums import Action, Direction, Outcome, RuleKind
from apps.guardrails.models.policies import PolicyVersion
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH


class Intervention(models.Model):
    """One finding of one rule in one stream, in words of that time: it outlives what it speaks of."""

    ref = models.CharField(max_length=300, unique=True, editable=False, help_text=_("The same finding has the same."))
    stream_id = models.CharField(max_length=REF_LENGTH, db_index=True)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    tenant_ref = models.CharField(_("tenant's id"), max_length=REF_LENGTH)
    tenant_label = models.CharField(_("tenant's name"), max_length=LABEL_LENGTH)
    deployment_label = models.CharField(_("deployment"), max_length=LABEL_LENGTH)
    policy_version = models.ForeignKey(
        PolicyVersion, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    policy_ref = models.CharField(_("policy's id"), max_length=REF_LENGTH)
    policy_label = models.CharField(_("policy"), max_length=LABEL_LENGTH)
    policy_number = models.PositiveIntegerField(_("policy's version"))
    rule_ref = models.CharField(_("rule's id"), max_length=REF_LENGTH, blank=True)
    rule_label = models.CharField(_("rule"), max_length=LABEL_LENGTH, blank=True)
    rule_kind = models.CharField(max_length=16, choices=RuleKind, blank=True)
    finding = models.CharField(max_length=LABEL_LENGTH, blank=True)
    direction = models.CharField(max_length=16, choices=Direction)
    action = models.CharField(max_length=16, choices=Action)
    outcome = models.CharField(max_length=16, choices=Outcome)
    is_shadow = models.BooleanField(_("shadow"), default=False)
    start = models.PositiveIntegerField(help_text=_("Offset of the first character found, in the text as generated."))
    end = models.PositiveIntegerField()
    excerpt = models.TextField(blank=True, help_text=_("What the tenant's retention of excerpts lets be kept."))
    held_ms = models.FloatField(_("held (ms)"), default=0.0, help_text=_("How long text waited for the judgement."))
    occurred_at = models.DateTimeField(db_index=True)
    recorded_at = models.DateTimeField(auto_now_add=True)
    is_false_positive = models.BooleanField(_("false positive"), default=False)
    marked_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    marked_by_label = models.CharField(_("marked by"), max_length=254, blank=True)
    marked_at = models.DateTimeField(null=True, blank=True)

    all_tenants = models.Manager["Intervention"]()
    objects = TenantManager["Intervention"]()

    class Meta:
        ordering = ["-occurred_at", "-id"]
        default_manager_name = "all_tenants"
        indexes = [
            models.Index(fields=["tenant", "-occurred_at"], name="intervention_by_tenant"),
            models.Index(fields=["policy_ref", "-occurred_at"], name="intervention_by_policy"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(direction__in=Direction.values, action__in=Action.values, outcome__in=Outcome.values),
                name="intervention_choices_known",
            ),
            models.CheckConstraint(
                condition=Q(is_false_positive=False) | Q(marked_at__isnull=False),
                name="intervention_mark_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule_label or self.policy_label}: {self.get_outcome_display()}"
