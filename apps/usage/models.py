"""What ended streams used: a row each, and sums by hour and by day. Rows are added by the ledger alone."""

import uuid
from decimal import Decimal

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.accounts.models import ApiKey, User
from apps.deployments.models import ModelDeployment
from apps.deployments.prices import from_micros, money_text
from apps.quotas.models import Quota
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH
from apps.usage.enums import AnswerSource, Bucket, Channel, FinishReason, StreamState

INCARNATION_LENGTH = 64
"""Of a worker's name for one of its lives."""


class Attribution(models.Model):
    """Whose usage it is, in ids and words of that time: a ledger outlives what it speaks of.

    Ids are UUIDs as 32 hex digits, as in the snapshot; an empty one is "none" (the chat has no key, a tenant's own key
    no member).
    """

    tenant_ref = models.CharField(_("tenant's id"), max_length=REF_LENGTH)
    tenant_label = models.CharField(_("tenant's name"), max_length=LABEL_LENGTH)
    api_key_ref = models.CharField(_("API key's id"), max_length=REF_LENGTH, blank=True)
    api_key_label = models.CharField(_("API key's name"), max_length=LABEL_LENGTH, blank=True)
    user_ref = models.CharField(_("member's id"), max_length=REF_LENGTH, blank=True)
    user_label = models.CharField(_("member's name"), max_length=LABEL_LENGTH, blank=True)
    deployment_ref = models.CharField(_("deployment's id"), max_length=REF_LENGTH, blank=True)
    deployment_label = models.CharField(_("deployment's name"), max_length=LABEL_LENGTH)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(
        default=0, help_text=_("Those of the prompt that came from the prefix cache.")
    )
    completion_tokens = models.PositiveBigIntegerField(default=0)
    cost_micros = models.PositiveBigIntegerField(
        _("cost"), default=0, help_text=_("Millionths of the currency unit, by the prices at admission.")
    )

    class Meta:
        abstract = True

    @property
    def cost(self) -> Decimal:
        """In the unit of the prices."""
        return from_micros(self.cost_micros)


class UsageRecord(Attribution):
    """One ended stream. Deleted after the tenant's retention; the roll-ups stay."""

    stream_id = models.CharField(max_length=64, unique=True)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    api_key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    user = models.ForeignKey(
        User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("member")
    )
    deployment = models.ForeignKey(ModelDeployment, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    adapter_label = models.CharField(
        _("adapter's name"), max_length=LABEL_LENGTH, blank=True, help_text=_("LoRA adapter that it was asked of.")
    )
    state = models.CharField(max_length=16, choices=StreamState)
    finish_reason = models.CharField(max_length=16, choices=FinishReason)
    source = models.CharField(
        _("answered by"),
        max_length=16,
        choices=AnswerSource,
        default=AnswerSource.ENGINE,
        help_text=_("What was not computed for it counts tokens only where the response cache's policy says so."),
    )
    worker = models.CharField(
        max_length=INCARNATION_LENGTH,
        blank=True,
        help_text=_("Which had it at its end; none where no worker did, or another caller's answer was ready already."),
    )
    admitted_at = models.DateTimeField(help_text=_("Budgets and sums count it there."))
    ended_at = models.DateTimeField(db_index=True)
    recorded_at = models.DateTimeField(auto_now_add=True)

    all_tenants = models.Manager["UsageRecord"]()
    objects = TenantManager["UsageRecord"]()

    class Meta:
        ordering = ["-ended_at", "-id"]
        default_manager_name = "all_tenants"
        verbose_name = _("ended stream")
        indexes = [models.Index(fields=["tenant", "-ended_at"], name="usage_record_by_tenant")]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=StreamState.values), name="usage_record_state_known"),
            models.CheckConstraint(
                condition=Q(finish_reason__in=FinishReason.values), name="usage_record_finish_reason_known"
            ),
            models.CheckConstraint(condition=Q(source__in=AnswerSource.values), name="usage_record_source_known"),
        ]

    def __str__(self) -> str:
        return self.stream_id


class UsageRollup(Attribution):
    """The sum of an hour or a day over one combination of tenant, key, member and deployment."""

    bucket = models.CharField(max_length=8, choices=Bucket)
    start_at = models.DateTimeField(help_text=_("By the tenant's clock; streams count where they were admitted."))
    tenant = models.ForeignKey(Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    requests = models.PositiveBigIntegerField(default=0)

    all_tenants = models.Manager["UsageRollup"]()
    objects = TenantManager["UsageRollup"]()

    class Meta:
        ordering = ["-start_at", "tenant_label"]
        default_manager_name = "all_tenants"
        verbose_name = _("sum of usage")
        verbose_name_plural = _("sums of usage")
        indexes = [models.Index(fields=["bucket", "start_at"], name="usage_rollup_by_time")]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    *("tenant_ref", "bucket", "start_at", "api_key_ref"),
                    *("user_ref", "deployment_ref", "deployment_label"),
                ],
                name="usage_rollup_once",
            ),
            models.CheckConstraint(condition=Q(bucket__in=Bucket.values), name="usage_rollup_bucket_known"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_label} {self.bucket} {self.start_at:%Y-%m-%d %H:%M}"


class SoftLimitNotice(models.Model):
    """A soft budget was passed: told once for each period of a quota."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    quota = models.ForeignKey(Quota, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    quota_ref = models.CharField(_("quota's id"), max_length=REF_LENGTH)
    quota_label = models.CharField(_("quota"), max_length=LABEL_LENGTH)
    period = models.CharField(max_length=REF_LENGTH, help_text=_("By the tenant's clock."))
    spent_micros = models.PositiveBigIntegerField(_("spent"), help_text=_("Millionths of the currency unit."))
    limit_micros = models.PositiveBigIntegerField(_("soft budget"), help_text=_("Millionths of the currency unit."))
    passed_at = models.DateTimeField()

    all_tenants = models.Manager["SoftLimitNotice"]()
    objects = TenantManager["SoftLimitNotice"]()

    class Meta:
        ordering = ["-passed_at"]
        default_manager_name = "all_tenants"
        verbose_name = _("notice of a soft budget")
        verbose_name_plural = _("notices of soft budgets")
        constraints = [models.UniqueConstraint(fields=["quota_ref", "period"], name="soft_limit_notice_once")]

    def __str__(self) -> str:
        return f"{self.quota_label}, {self.period}"

    @property
    def spent(self) -> str:
        """In the unit of the prices, for people."""
        return money_text(from_micros(self.spent_micros))

    @property
    def limit(self) -> str:
        """In the unit of the prices, for people."""
        return money_text(from_micros(self.limit_micros))


class Delivery(models.Model):
    """The way of something that is told, over one channel (`deliveries`)."""

    channel = models.CharField(max_length=16, choices=Channel)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Empty: delivered, or given up after the last try.")
    )
    delivered_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=500, blank=True)

    class Meta:
        abstract = True

    @property
    def progress(self) -> object:
        """For people."""
        if self.delivered_at is not None:
            return _("delivered")
        return _("waits") if self.next_attempt_at is not None else _("given up")


class NoticeDelivery(Delivery):
    """The way of a notice over one channel."""

    notice = models.ForeignKey(SoftLimitNotice, on_delete=models.CASCADE, related_name="deliveries")

    class Meta:
        ordering = ["notice", "channel"]
        verbose_name_plural = _("deliveries")
        indexes = [models.Index(fields=["next_attempt_at"], name="notice_delivery_due")]
        constraints = [
            models.UniqueConstraint(fields=["notice", "channel"], name="notice_delivery_once"),
            models.CheckConstraint(condition=Q(channel__in=Channel.values), name="notice_delivery_channel_known"),
            models.CheckConstraint(
                condition=Q(delivered_at__isnull=True) | Q(next_attempt_at__isnull=True),
                name="notice_delivery_ends_with_success",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_channel_display()}: {self.notice}"
