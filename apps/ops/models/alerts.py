"""Alert rules, what fired, and who is told."""

import uuid
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, validate_email
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.ops.alerts.enums import (
    AlertEvent,
    AlertState,
    Direction,
    Duration,
    FleetFigure,
    Happening,
    Severity,
    Signal,
)
from apps.tenants.models import Tenant
from apps.tenants.webhook_targets import webhook_address_check
from apps.usage.enums import Channel
from apps.usage.models import Delivery

NAME_LENGTH = 120
SUBJECT_LENGTH = 300
SHORTEST_SECONDS, LONGEST_SECONDS = 10, 7 * 24 * 3600
"""Of a rule's times."""


class AlertReceiver(models.Model):
    """Somebody who is told: people by email, or a program by a signed webhook."""

    name = models.CharField(max_length=NAME_LENGTH, unique=True)
    channel = models.CharField(max_length=16, choices=Channel, default=Channel.EMAIL)
    address = models.CharField(
        max_length=500,
        blank=True,
        help_text=_("Email addresses, separated by commas; empty: all operators. Or the webhook's URL."),
    )
    is_default = models.BooleanField(
        _("default"), default=False, help_text=_("Is told of alerts whose rule names nobody.")
    )
    is_active = models.BooleanField(_("active"), default=True)
    webhook_secret = models.CharField(max_length=300, blank=True, editable=False)
    """Sealed (`sealed_text`)."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("receiver of alerts")
        verbose_name_plural = _("receivers of alerts")
        constraints = [
            models.CheckConstraint(condition=Q(channel__in=Channel.values), name="alert_receiver_channel_known"),
            models.CheckConstraint(
                condition=Q(channel=Channel.EMAIL) | ~Q(address=""), name="alert_receiver_webhook_has_address"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks the address, without looking it up.

        Raises:
            ValidationError: It is none of the channel's.
        """
        if self.channel == Channel.WEBHOOK:
            webhook_address_check(self.address, field="address")
            return
        for address in filter(None, map(str.strip, self.address.split(","))):
            try:
                validate_email(address)
            except ValidationError as error:
                told = _("“%s” is no email address. Write some like ops@example.org, separated by commas.") % address
                raise ValidationError({"address": told}, code="address") from error


class AlertRule(models.Model):
    """When an alert fires, and when it is over."""

    key = models.SlugField(max_length=63, unique=True, help_text=_("Its name for programs, webhooks and Prometheus."))
    name = models.CharField(max_length=NAME_LENGTH)
    advice = models.TextField(blank=True, help_text=_("What to do; receivers read it."))
    signal = models.CharField(max_length=16, choices=Signal)
    duration = models.CharField(max_length=16, choices=Duration, blank=True, help_text=_("Only for a percentile."))
    percentile = models.FloatField(null=True, blank=True, validators=[MinValueValidator(1.0), MaxValueValidator(99.99)])
    happening = models.CharField(max_length=16, choices=Happening, blank=True, help_text=_("Only for a share."))
    figure = models.CharField(max_length=24, choices=FleetFigure, blank=True, help_text=_("Only for the fleet."))
    direction = models.CharField(
        _("bad is"), max_length=8, choices=Direction, default=Direction.ABOVE, help_text=_("… the threshold.")
    )
    threshold = models.FloatField()
    clear_threshold = models.FloatField(
        _("over at"), help_text=_("It has to come back so far before the alert is over, so that it does not flutter.")
    )
    for_seconds = models.PositiveIntegerField(
        _("for (s)"), default=60, help_text=_("It must be bad for so long without a break.")
    )
    window_seconds = models.PositiveIntegerField(
        _("over the last (s)"),
        default=300,
        validators=[MinValueValidator(SHORTEST_SECONDS), MaxValueValidator(LONGEST_SECONDS)],
        help_text=_("Requests of this time count; for a burn rate, the long one of the two times."),
    )
    short_window_seconds = models.PositiveIntegerField(
        _("and over the last (s)"), null=True, blank=True, help_text=_("Only for a burn rate: the short time.")
    )
    severity = models.CharField(max_length=16, choices=Severity, default=Severity.WARNING)
    deployment = models.ForeignKey(
        ModelDeployment,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text=_("Empty: each active deployment by itself."),
    )
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text=_("Empty: the requests of all tenants together. Only for a percentile or a share."),
    )
    receivers = models.ManyToManyField(
        AlertReceiver, blank=True, related_name="rules", help_text=_("Nobody: those that are told by default.")
    )
    is_active = models.BooleanField(_("active"), default=True)
    is_built_in = models.BooleanField(_("built in"), default=False, editable=False)
    read_at = models.DateTimeField(null=True, blank=True, editable=False, help_text=_("Of the last look at it."))
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(tenant__isnull=True) | Q(signal__in=[Signal.PERCENTILE, Signal.SHARE]),
                name="alert_rule_of_a_tenant_is_of_requests",
                violation_error_message=_("Of a tenant only percentiles and shares of requests are known."),
            ),
            models.CheckConstraint(condition=Q(signal__in=Signal.values), name="alert_rule_signal_known"),
            models.CheckConstraint(condition=Q(severity__in=Severity.values), name="alert_rule_severity_known"),
            models.CheckConstraint(
                condition=(Q(signal=Signal.PERCENTILE) & ~Q(duration="") & Q(percentile__isnull=False))
                | (Q(signal=Signal.SHARE) & ~Q(happening=""))
                | (Q(signal=Signal.FLEET) & ~Q(figure=""))
                | Q(signal=Signal.BURN_RATE, short_window_seconds__isnull=False),
                name="alert_rule_names_its_signal",
                violation_error_message=_(
                    "A percentile needs a duration and a percentage, a share what is counted, the fleet a figure, a"
                    " burn rate its short time."
                ),
            ),
            models.CheckConstraint(
                condition=Q(direction=Direction.ABOVE, clear_threshold__lte=F("threshold"))
                | Q(direction=Direction.BELOW, clear_threshold__gte=F("threshold")),
                name="alert_rule_clears_on_the_good_side",
                violation_error_message=_("It is over on the good side of the threshold, or at it."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks the times, which columns alone cannot.

        Raises:
            ValidationError: No alert could ever fire, or the times of a burn rate are crossed.
        """
        wrong: dict[str, Any] = {}
        if (self.for_seconds or 0) > LONGEST_SECONDS:
            wrong["for_seconds"] = _("%d seconds (a week) at most.") % LONGEST_SECONDS
        short, long = self.short_window_seconds, self.window_seconds
        if self.signal == Signal.BURN_RATE and short is not None:
            if short < SHORTEST_SECONDS:
                wrong["short_window_seconds"] = _("%d seconds at least.") % SHORTEST_SECONDS
            elif short > (long or 0):
                wrong["short_window_seconds"] = _("It is longer than the long one, which is of %d seconds.") % long
        if wrong:
            raise ValidationError(wrong, code="times")


class AlertSilence(models.Model):
    """A time in which nobody is told. What still fires when it is over is told then."""

    rule = models.ForeignKey(
        AlertRule, on_delete=models.CASCADE, null=True, blank=True, related_name="silences", help_text=_("Empty: all.")
    )
    deployment = models.ForeignKey(
        ModelDeployment, on_delete=models.CASCADE, null=True, blank=True, related_name="+", help_text=_("Empty: all.")
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-ends_at"]
        verbose_name = _("silence")
        constraints = [
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at")),
                name="alert_silence_ends_after_it_starts",
                violation_error_message=_("It ends before it begins."),
            )
        ]

    def __str__(self) -> str:
        return f"{self.reason} ({self.starts_at:%Y-%m-%d %H:%M} - {self.ends_at:%Y-%m-%d %H:%M} UTC)"


class Alert(models.Model):
    """One time that a rule was broken by one subject: pending, then firing, then resolved."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, related_name="alerts")
    rule_key = models.CharField(max_length=63)
    rule_name = models.CharField(max_length=NAME_LENGTH)
    severity = models.CharField(max_length=16, choices=Severity)
    subject = models.CharField(max_length=SUBJECT_LENGTH, help_text=_("What broke it: a deployment, an objective."))
    deployment_name = models.CharField(max_length=128, blank=True)
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text=_("Whose requests the rule looked at; empty: all."),
    )
    state = models.CharField(max_length=16, choices=AlertState, default=AlertState.PENDING)
    value = models.FloatField(null=True, help_text=_("When it was last looked at, or when it was over."))
    worst_value = models.FloatField(null=True)
    threshold = models.FloatField()
    since = models.DateTimeField(help_text=_("When it was first seen to be bad."))
    fired_at = models.DateTimeField(null=True, blank=True)
    told_at = models.DateTimeField(null=True, blank=True, help_text=_("Empty: nobody was told, it was silenced."))
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = [F("resolved_at").desc(nulls_first=True), "-since"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule_key", "subject"], condition=Q(resolved_at__isnull=True), name="alert_open_once"
            ),
            models.CheckConstraint(
                condition=Q(state=AlertState.PENDING, fired_at__isnull=True, resolved_at__isnull=True)
                | Q(state=AlertState.FIRING, fired_at__isnull=False, resolved_at__isnull=True)
                | Q(state=AlertState.RESOLVED, fired_at__isnull=False, resolved_at__isnull=False),
                name="alert_state_fits_its_times",
            ),
        ]
        indexes = [models.Index(fields=["resolved_at"], name="alert_by_end")]

    def __str__(self) -> str:
        return f"{self.rule_name}: {self.subject}"


class AlertDelivery(Delivery):
    """The way of one event of an alert to one receiver."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="deliveries")
    receiver = models.ForeignKey(AlertReceiver, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=16, choices=AlertEvent)

    class Meta:
        ordering = ["alert", "event", "receiver"]
        verbose_name_plural = _("deliveries")
        indexes = [models.Index(fields=["next_attempt_at"], name="alert_delivery_due")]
        constraints = [
            models.UniqueConstraint(fields=["alert", "event", "receiver"], name="alert_delivery_once"),
            models.CheckConstraint(
                condition=Q(delivered_at__isnull=True) | Q(next_attempt_at__isnull=True),
                name="alert_delivery_ends_with_success",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.alert} {self.event} → {self.receiver}"
