"""Admin of alert rules, of what fired, of who is told and of silences."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RangeDateTimeFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.ops.alerts.enums import AlertState, Direction, Severity, Signal
from apps.ops.alerts.sending import alerts_retry
from apps.ops.alerts.services import alert_receiver_secret_renew, alerting_delete, alerting_save, alerts_silence
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule, AlertSilence
from apps.tenants.service_admin import ReadOnlyAdmin, ServiceAdmin, actor_of
from apps.tenants.services import Actor
from apps.usage.enums import Channel

SILENCE = timedelta(hours=1)

_STATE_COLOURS = {
    AlertState.PENDING.label: "warning",
    AlertState.FIRING.label: "danger",
    AlertState.RESOLVED.label: "success",
}
_SEVERITY_COLOURS = {
    Severity.INFO.label: "info",
    Severity.WARNING.label: "warning",
    Severity.CRITICAL.label: "danger",
}


class _AlertingAdmin(ServiceAdmin):
    """Writes through the services of alerts."""

    def service_create(self, row: Any, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ANN401
        """Creates the row."""
        alerting_save(row=row, receivers=values.get("receivers"), actor=actor)

    def service_update(self, row: Any, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ANN401
        """Changes the row."""
        alerting_save(row=row, receivers=values.get("receivers"), actor=actor)

    def service_delete(self, row: Any, actor: Actor) -> None:  # noqa: ANN401
        """Deletes the row."""
        alerting_delete(row=row, actor=actor)


@admin.register(AlertRule)
class AlertRuleAdmin(_AlertingAdmin):
    """When alerts fire."""

    list_display = ("name", "condition", "how_much", "scope", "whose", "is_active", "read_at")
    list_filter = ["is_active", ("severity", ChoicesDropdownFilter), ("signal", ChoicesDropdownFilter)]
    list_select_related = ("deployment", "tenant")
    search_fields = ("name", "key", "tenant__name", "tenant__slug")
    autocomplete_fields = ("deployment", "tenant", "receivers")
    readonly_fields = ("is_built_in", "read_at", "created_at", "updated_at")
    fieldsets = [
        (
            None,
            {"fields": [("name", "key"), ("severity", "is_active"), ("deployment", "tenant"), "receivers", "advice"]},
        ),
        (
            _("What it looks at"),
            {
                "fields": [
                    "signal",
                    ("duration", "percentile"),
                    ("happening", "figure"),
                    ("window_seconds", "short_window_seconds"),
                ],
                "description": _("A burn rate is that of every objective; its threshold is a multiple."),
            },
        ),
        (_("When it fires"), {"fields": [("direction", "threshold"), ("clear_threshold", "for_seconds")]}),
        (_("Looks"), {"fields": [("read_at", "is_built_in"), ("created_at", "updated_at")]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: AlertRule | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes the key once it is given: alerts and Prometheus' rules have it."""
        return (*self.readonly_fields, "key") if obj is not None else self.readonly_fields

    @admin.display(description=_("Fires when"))
    def condition(self, rule: AlertRule) -> str:
        """Returns the rule in words."""
        sign = ">" if rule.direction == Direction.ABOVE else "<"
        return f"{_subject_of(rule)} {sign} {rule.threshold:g}, {rule.for_seconds} s"

    @display(description=_("Severity"), ordering="severity", label=_SEVERITY_COLOURS)  # type: ignore[untyped-decorator]
    def how_much(self, rule: AlertRule) -> str:
        """Returns a coloured word."""
        return rule.get_severity_display()

    @admin.display(description=_("Deployment"), ordering="deployment")
    def scope(self, rule: AlertRule) -> object:
        """Returns whose it is."""
        return rule.deployment or _("each")

    @admin.display(description=_("Tenant"), ordering="tenant")
    def whose(self, rule: AlertRule) -> object:
        """Returns whose requests it looks at."""
        return rule.tenant or _("all")


def _subject_of(rule: AlertRule) -> str:
    if rule.signal == Signal.PERCENTILE:
        return f"{rule.get_duration_display()} p{rule.percentile:g}"
    if rule.signal == Signal.SHARE:
        return f"{rule.get_happening_display()} / requests"
    if rule.signal == Signal.FLEET:
        return rule.get_figure_display()
    return f"{rule.get_signal_display()}, {rule.window_seconds} s and {rule.short_window_seconds} s,"


@admin.register(AlertSilence)
class AlertSilenceAdmin(_AlertingAdmin):
    """When nobody is told."""

    empty_help = _("While one lasts, alerts are noted and nobody is told.")

    list_display = ("reason", "rule", "deployment", "starts_at", "ends_at")
    list_filter = [("rule", RelatedDropdownFilter), ("ends_at", RangeDateTimeFilter)]
    list_filter_submit = True
    list_select_related = ("rule", "deployment")
    autocomplete_fields = ("rule", "deployment")
    fields = ("reason", ("rule", "deployment"), ("starts_at", "ends_at"))


@admin.register(AlertReceiver)
class AlertReceiverAdmin(_AlertingAdmin):
    """Who is told."""

    empty_help = _("Without one, nobody is told of alerts.")

    list_display = ("name", "channel", "address", "is_default", "is_active")
    list_filter = [("channel", ChoicesDropdownFilter), "is_active"]
    search_fields = ("name", "address")
    actions_detail = ("renew_secret",)
    fields = ("name", ("channel", "address"), ("is_default", "is_active"))

    @action(description=_("New webhook secret"), url_path="webhook-secret", permissions=["change"], icon="key")  # type: ignore[untyped-decorator]
    def renew_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then makes a new secret and shows it, once."""
        receiver: AlertReceiver | None = self.get_object(request, object_id)
        if receiver is None or receiver.channel != Channel.WEBHOOK:
            raise Http404
        secret = ""
        if request.method == "POST":
            secret = alert_receiver_secret_renew(receiver=receiver, actor=actor_of(request))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": receiver,
            "title": _("Webhook secret"),
            "secret": secret,
        }
        return TemplateResponse(request, "tenants/admin/webhook_secret.html", context)


class AlertDeliveryInline(TabularInline):  # type: ignore[misc]  # unfold ships no types
    """Who was told, and whether it arrived."""

    model = AlertDelivery
    fields = ("receiver", "event", "channel", "attempts", "delivered_at", "next_attempt_at", "last_error")
    readonly_fields = fields
    extra = 0
    can_delete = False

    def has_add_permission(self, *_: object) -> bool:
        """Refuses."""
        return False


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    """What fired; what is open comes first."""

    empty_help = _("An alert stands here from when the bound of a rule is passed; Celery looks every 15 s.")

    list_display = ("rule_name", "subject", "how", "how_much", "numbers", "since", "fired_at", "resolved_at", "told")
    list_filter = [
        ("state", ChoicesDropdownFilter),
        ("severity", ChoicesDropdownFilter),
        ("rule", RelatedDropdownFilter),
        ("tenant", RelatedDropdownFilter),
        ("since", RangeDateTimeFilter),
    ]
    list_filter_submit = True
    search_fields = ("rule_name", "rule_key", "subject")
    inlines = (AlertDeliveryInline,)
    actions = ("silence", "send_again")
    fields = (
        ("rule_name", "rule_key", "rule"),
        ("subject", "deployment_name", "tenant"),
        ("state", "severity"),
        ("value", "worst_value", "threshold"),
        ("since", "fired_at", "told_at", "resolved_at"),
    )

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Alert]":
        """Brings the deliveries along."""
        rows: QuerySet[Alert] = super().get_queryset(request)
        return rows.prefetch_related("deliveries__receiver")

    @display(description=_("State"), ordering="state", label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def how(self, alert: Alert) -> str:
        """Returns a coloured word."""
        return alert.get_state_display()

    @display(description=_("Severity"), ordering="severity", label=_SEVERITY_COLOURS)  # type: ignore[untyped-decorator]
    def how_much(self, alert: Alert) -> str:
        """Returns a coloured word."""
        return alert.get_severity_display()

    @admin.display(description=_("Now / worst / threshold"))
    def numbers(self, alert: Alert) -> str:
        """Returns the three."""
        known = (
            "-" if value is None else f"{value:.4g}" for value in (alert.value, alert.worst_value, alert.threshold)
        )
        return " / ".join(known)

    @admin.display(description=_("Told"))
    def told(self, alert: Alert) -> str:
        """Returns each receiver with what became of it."""
        return ", ".join(f"{way.receiver} ({way.event}): {way.progress}" for way in alert.deliveries.all()) or str(
            _("nobody")
        )

    def has_silence_permission(self, request: HttpRequest) -> bool:
        """Asks for what adding a silence needs."""
        return bool(request.user.has_perm("ops.add_alertsilence"))

    @admin.action(description=_("Silence their rules of their deployments for an hour"), permissions=["silence"])
    def silence(self, request: HttpRequest, queryset: "QuerySet[Alert]") -> None:
        """Adds silences; they stand under Silences, to be changed or ended."""
        count = alerts_silence(alerts=queryset.select_related("rule"), lasts=SILENCE, actor=actor_of(request))
        told = ngettext("%d silence was added, for an hour.", "%d silences were added, for an hour.", count)
        messages.info(request, told % count)

    @admin.action(description=_("Send again what did not arrive"), permissions=["view"])
    def send_again(self, request: HttpRequest, queryset: "QuerySet[Alert]") -> None:
        """Has the deliveries tried again that were given up or wait."""
        count = alerts_retry(alerts=queryset)
        messages.info(request, ngettext("%d delivery is tried again.", "%d deliveries are tried again.", count) % count)
