"""Tenants, their members, and the trail of what was changed."""

import uuid
import zoneinfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator, URLValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.tenants.enums import (
    INEXACT_FIELDS,
    AuditAction,
    DetachedPolicy,
    ExcerptRetention,
    InexactPolicy,
    MemberRole,
)
from apps.tenants.managers import TenantManager
from apps.tenants.webhook_targets import webhook_port_check


class Tenant(ExportModelOperationsMixin("tenant"), models.Model):  # type: ignore[misc]
    """A customer: owns members, keys, quotas, chats and usage. Nothing of it is visible to another tenant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(
        max_length=63, unique=True, help_text=_("Short name for URLs, metrics and logs. Stays as it is.")
    )
    name = models.CharField(max_length=200)
    is_active = models.BooleanField(
        _("active"), default=True, help_text=_("Keys and members of an inactive tenant are refused within a second.")
    )
    time_zone = models.CharField(
        max_length=64,
        default="UTC",
        help_text=_("Budgets begin and end by this clock, e.g. Europe/Zurich."),
    )
    retention_days = models.PositiveIntegerField(
        default=30,
        validators=[MinValueValidator(1), MaxValueValidator(3650)],
        help_text=_("Days until conversations and usage details are deleted."),
    )
    log_retention_seconds = models.PositiveIntegerField(
        default=3600,
        validators=[MinValueValidator(3600), MaxValueValidator(7 * 24 * 3600)],
        help_text=_("Seconds that a finished stream can still be resumed or read again. At least 3600."),
    )
    stream_window = models.PositiveIntegerField(
        default=256,
        validators=[MinValueValidator(8), MaxValueValidator(65536)],
        help_text=_(
            "Tokens that the engine may be ahead of what a client took. Smaller saves GPU time on slow clients."
        ),
    )
    max_connections = models.PositiveIntegerField(
        default=1024,
        validators=[MinValueValidator(1), MaxValueValidator(1_000_000)],
        help_text=_("Connections that its clients may have open at one gateway; more are refused with 429."),
    )
    detached_policy = models.CharField(
        max_length=16,
        choices=DetachedPolicy,
        default=DetachedPolicy.FINISH,
        help_text=_("What happens to an answer when nobody is reading it any more."),
    )
    detached_tokens = models.PositiveIntegerField(
        default=256,
        validators=[MinValueValidator(1), MaxValueValidator(65536)],
        help_text=_("Only for “continue”: tokens that are generated before the stream is suspended."),
    )
    detached_grace_seconds = models.FloatField(
        default=30.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(3600.0)],
        help_text=_("Only for “abort”: seconds that a client has to come back."),
    )
    stall_timeout_seconds = models.FloatField(
        default=60.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(3600.0)],
        help_text=_("A client that takes nothing for this long is disconnected."),
    )
    inexact_penalties = models.CharField(
        _("with penalties"),
        max_length=16,
        choices=InexactPolicy,
        default=InexactPolicy.CONTINUE,
        help_text=_("Presence and frequency penalties count only what their own engine has generated."),
    )
    inexact_precision = models.CharField(
        _("below float32"),
        max_length=16,
        choices=InexactPolicy,
        default=InexactPolicy.CONTINUE,
        help_text=_("With bfloat16, float16 or quantisation, and without batch-invariant kernels."),
    )
    inexact_sampling = models.CharField(
        _("with an engine's own sampling"),
        max_length=16,
        choices=InexactPolicy,
        default=InexactPolicy.CONTINUE,
        help_text=_("Sampled answers of engines that do not draw by seed and position (speculative decoding)."),
    )
    intervention_excerpts = models.CharField(
        _("excerpts of interventions"),
        max_length=16,
        choices=ExcerptRetention,
        default=ExcerptRetention.REDACTED,
        help_text=_("What is kept of a text in which a guardrail found something."),
    )
    draft_tokens_per_minute = models.PositiveIntegerField(
        _("tokens for drafts per minute"),
        default=100_000,
        validators=[MaxValueValidator(1_000_000_000)],
        help_text=_("While users type, idle workers compute the prompt so far, up to so many tokens. 0: off."),
    )
    plan = models.ForeignKey(
        "quotas.Plan",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="tenants",
        help_text=_("Its weight and priority in busy queues. Empty: weight 1, normal priority."),
    )
    webhook_url = models.CharField(
        _("webhook URL"),
        max_length=500,
        blank=True,
        validators=[URLValidator(schemes=["http", "https"])],
        help_text=_("Notices are posted there, signed (see docs/usage.md). Empty: by email alone."),
    )
    webhook_secret = models.CharField(max_length=300, blank=True, editable=False)
    """Sealed (`sealed_text`)."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(log_retention_seconds__gte=3600), name="tenant_log_retention_at_least_an_hour"
            ),
            models.CheckConstraint(condition=models.Q(stream_window__gte=8), name="tenant_stream_window_not_tiny"),
            models.CheckConstraint(condition=models.Q(retention_days__gte=1), name="tenant_retention_days_positive"),
            models.CheckConstraint(
                condition=models.Q(detached_policy__in=DetachedPolicy.values), name="tenant_detached_policy_known"
            ),
            models.CheckConstraint(
                condition=models.Q(**{f"{name}__in": InexactPolicy.values for name in INEXACT_FIELDS.values()}),
                name="tenant_inexact_policies_known",
            ),
            models.CheckConstraint(
                condition=models.Q(intervention_excerpts__in=ExcerptRetention.values),
                name="tenant_intervention_excerpts_known",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: The time zone is not in the IANA database, or no webhook's port is as told.
        """
        if self.time_zone not in zoneinfo.available_timezones():
            raise ValidationError({"time_zone": _("Unknown time zone.")}, code="unknown_time_zone")
        webhook_port_check(self.webhook_url, field="webhook_url")


class Membership(models.Model):
    """A user's place in a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(
        max_length=16,
        choices=MemberRole,
        default=MemberRole.MEMBER,
        help_text=_("Owners and admins manage members, keys and quotas of their tenant; members use it."),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    all_tenants = models.Manager["Membership"]()
    objects = TenantManager["Membership"]()

    class Meta:
        ordering = ["tenant", "user"]
        default_manager_name = "all_tenants"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once_per_tenant"),
            models.CheckConstraint(condition=models.Q(role__in=MemberRole.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} · {self.tenant} ({self.get_role_display()})"


class AuditEvent(models.Model):
    """One change of configuration: who did what to which object. Rows are only ever added."""

    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    actor_label = models.CharField(max_length=254, help_text=_("Who it was, as named at that time."))
    tenant = models.ForeignKey(Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    action = models.CharField(max_length=64, choices=AuditAction, db_index=True)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=64)
    object_label = models.CharField(max_length=254)
    details = models.JSONField(
        default=dict, blank=True, encoder=DjangoJSONEncoder, help_text=_("What changed, from and to; never a secret.")
    )

    all_tenants = models.Manager["AuditEvent"]()
    objects = TenantManager["AuditEvent"]()

    class Meta:
        ordering = ["-created_at", "-id"]
        default_manager_name = "all_tenants"
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="audit_by_tenant"),
            models.Index(fields=["object_type", "object_id"], name="audit_by_object"),
        ]

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.object_label}"
