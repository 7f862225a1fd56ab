"""Admin of the ledger: ended streams, the page of sums with charts, notices. Nothing here is edited."""

import json
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    RangeDateTimeFilter,
    RelatedDropdownFilter,
)
from unfold.decorators import action, display

from apps.deployments.prices import money_text
from apps.tenants.service_admin import ReadOnlyAdmin
from apps.usage.csv_export import records_csv, rollups_csv
from apps.usage.enums import Bucket, Group, StreamState
from apps.usage.forms import ReportForm
from apps.usage.models import NoticeDelivery, SoftLimitNotice, UsageRecord, UsageRollup
from apps.usage.notices import notices_retry
from apps.usage.report import CHART_OPTIONS, usage_report

_STATE_COLOURS = {
    StreamState.FINISHED.label: "success",
    StreamState.FAILED.label: "danger",
    StreamState.CANCELLED.label: "warning",
    StreamState.REPLACED.label: "info",
}


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    """Every ended stream within its tenant's retention; names are those of that time, so that no table is joined."""

    list_display = (
        "ended_at",
        "tenant_label",
        "deployment_label",
        "api_key_label",
        "user_label",
        "how",
        "finish_reason",
        "tokens",
        "money",
    )
    list_filter = [
        ("tenant", RelatedDropdownFilter),
        ("deployment", RelatedDropdownFilter),
        ("state", ChoicesDropdownFilter),
        ("finish_reason", ChoicesDropdownFilter),
        ("source", ChoicesDropdownFilter),
        ("ended_at", RangeDateTimeFilter),
    ]
    list_filter_submit = True
    date_hierarchy = "ended_at"
    search_fields = ("=stream_id", "api_key_label", "user_label")
    search_help_text = _("Stream, key or member.")
    actions = ("export",)
    actions_list = ("overview", "export_sums")
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "stream_id",
                    ("state", "finish_reason", "source", "worker"),
                    ("admitted_at", "ended_at", "recorded_at"),
                ]
            },
        ),
        (
            _("Whose"),
            {
                "fields": [
                    ("tenant", "tenant_label", "tenant_ref"),
                    ("api_key", "api_key_label", "api_key_ref"),
                    ("user", "user_label", "user_ref"),
                    ("deployment", "deployment_label", "deployment_ref"),
                    "adapter_label",
                ],
                "description": _("Names and ids are kept as they were; the links follow what is there now."),
            },
        ),
        (_("Used"), {"fields": [("prompt_tokens", "cached_tokens", "completion_tokens"), "money"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[UsageRecord]":
        """Brings along what the page of one record links to."""
        rows: QuerySet[UsageRecord] = super().get_queryset(request)
        if request.resolver_match is not None and "object_id" in request.resolver_match.kwargs:
            return rows.select_related("tenant", "api_key", "user", "deployment")
        return rows

    @display(description=_("State"), ordering="state", label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def how(self, record: UsageRecord) -> str:
        """Returns a coloured word."""
        return record.get_state_display()

    @admin.display(description=_("Prompt (cached) + answer"), ordering="completion_tokens")
    def tokens(self, record: UsageRecord) -> str:
        """Returns the three counts."""
        return f"{record.prompt_tokens:,} ({record.cached_tokens:,}) + {record.completion_tokens:,}"

    @admin.display(description=_("Cost"), ordering="cost_micros")
    def money(self, record: UsageRecord) -> str:
        """Returns the cost in the unit of the prices."""
        return money_text(record.cost)

    @admin.action(description=_("Export as CSV"), permissions=["view"])
    def export(self, request: HttpRequest, queryset: "QuerySet[UsageRecord]") -> StreamingHttpResponse:  # noqa: ARG002
        """Sends the chosen rows, or all that the filters leave, as a file."""
        return records_csv(queryset)

    @action(description=_("Sums and charts"), url_path="overview", permissions=["view"], icon="bar_chart")  # type: ignore[untyped-decorator]
    def overview(self, request: HttpRequest) -> HttpResponse:
        """Shows the sums of days, for one tenant or all."""
        asked = _asked(request)
        report = usage_report(**asked, now=timezone.now())
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": asked["tenant"] or _("Usage of all tenants"),
            "form": ReportForm({**asked, "by": asked["group"]}),
            "query": request.GET.urlencode(),
            "report": report,
            "group": asked["group"],
            "headings": (_("Requests"), _("Prompt tokens"), _("Cached"), _("Answer tokens"), _("Cost")),
            "tokens_chart": json.dumps(report.tokens_chart),
            "cost_chart": json.dumps(report.cost_chart),
            "chart_options": json.dumps(CHART_OPTIONS),
        }
        return TemplateResponse(request, "usage/admin/overview.html", context)

    @action(description=_("Export sums as CSV"), url_path="export", permissions=["view"], icon="download")  # type: ignore[untyped-decorator]
    def export_sums(self, request: HttpRequest) -> StreamingHttpResponse:
        """Sends the sums that the overview shows, split by everything, as a file."""
        asked = _asked(request)
        report = usage_report(**asked, now=timezone.now())
        rows = UsageRollup.all_tenants.filter(bucket=Bucket.DAY, start_at__gte=report.start, start_at__lt=report.end)
        return rollups_csv(rows.filter(tenant=asked["tenant"]) if asked["tenant"] else rows)


def _asked(request: HttpRequest) -> dict[str, Any]:
    """Returns what the page was asked for; what makes no sense is left out."""
    form = ReportForm(request.GET)
    form.is_valid()
    values = form.cleaned_data
    return {
        "tenant": values.get("tenant"),
        "days": values.get("days") or 30,
        "group": values.get("by") or Group.DEPLOYMENT,
    }


class NoticeDeliveryInline(TabularInline):  # type: ignore[misc]  # unfold ships no types
    """The ways of a notice."""

    model = NoticeDelivery
    fields = ("channel", "attempts", "delivered_at", "next_attempt_at", "last_error")
    readonly_fields = fields
    extra = 0
    can_delete = False

    def has_add_permission(self, *_: object) -> bool:
        """Refuses."""
        return False


@admin.register(SoftLimitNotice)
class SoftLimitNoticeAdmin(ReadOnlyAdmin):
    """Who was told that a soft budget was passed, and whether it arrived."""

    list_display = ("passed_at", "tenant", "quota_label", "period", "spent", "limit", "arrived")
    list_filter = [("tenant", RelatedDropdownFilter), ("passed_at", RangeDateTimeFilter)]
    list_filter_submit = True
    list_select_related = ("tenant",)
    search_fields = ("quota_label", "tenant__name")
    inlines = (NoticeDeliveryInline,)
    actions = ("send_again",)
    fields = ("passed_at", "tenant", "quota", "quota_label", "period", "spent", "limit")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[SoftLimitNotice]":
        """Brings the deliveries along."""
        rows: QuerySet[SoftLimitNotice] = super().get_queryset(request)
        return rows.prefetch_related("deliveries")

    @admin.display(description=_("Told"))
    def arrived(self, notice: SoftLimitNotice) -> str:
        """Returns each channel with its state."""
        return ", ".join(f"{way.get_channel_display()}: {way.progress}" for way in notice.deliveries.all())

    @admin.action(description=_("Send again what did not arrive"), permissions=["view"])
    def send_again(self, request: HttpRequest, queryset: "QuerySet[SoftLimitNotice]") -> None:
        """Has the deliveries tried again that were given up or wait."""
        count = notices_retry(notices=queryset)
        messages.info(request, ngettext("%d delivery is tried again.", "%d deliveries are tried again.", count) % count)
