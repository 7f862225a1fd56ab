"""Admin of what guardrails did."""

from datetime import timedelta

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    DropdownFilter,
    FieldTextFilter,
    RangeDateTimeFilter,
    RelatedDropdownFilter,
)
from unfold.decorators import action, display

from apps.guardrails.enums import Outcome
from apps.guardrails.intervention_csv import interventions_csv
from apps.guardrails.intervention_records import intervention_mark
from apps.guardrails.models import GuardrailPolicy, Intervention
from apps.guardrails.selectors import intervention_counts
from apps.tenants.service_admin import ReadOnlyAdmin, actor_of

_OUTCOME_COLOURS = {
    Outcome.BLOCKED.label: "danger",
    Outcome.MASKED.label: "warning",
    Outcome.FLAGGED.label: "info",
    Outcome.UNCHECKED.label: "warning",
    Outcome.FAILED.label: "danger",
}
COUNTED_DAYS = (1, 7, 30)
MARKED_AT_ONCE = 1_000


class PolicyFilter(DropdownFilter):  # type: ignore[misc]  # unfold ships no types
    """The policies that there are; interventions know them by their id."""

    title = _("Policy")
    parameter_name = "policy"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Returns their ids and names."""
        rows = GuardrailPolicy.all_tenants.select_related("tenant")
        return [(row.pk.hex, f"{row} ({row.tenant})" if row.tenant is not None else str(row)) for row in rows]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Intervention]") -> "QuerySet[Intervention]":  # noqa: ARG002
        """Returns what the chosen one did."""
        chosen = self.value()
        return queryset.filter(policy_ref=chosen) if chosen else queryset


@admin.register(Intervention)
class InterventionAdmin(ReadOnlyAdmin):
    """What guardrails did; names are those of that time, so that no table is joined."""

    list_display = (
        "occurred_at",
        "tenant_label",
        "policy_label",
        "rule_label",
        "finding",
        "what",
        "shadow",
        "direction",
        "excerpt_start",
        "wrong",
    )
    list_filter = [
        ("tenant", RelatedDropdownFilter),
        PolicyFilter,
        ("rule_label", FieldTextFilter),
        ("outcome", ChoicesDropdownFilter),
        ("action", ChoicesDropdownFilter),
        ("rule_kind", ChoicesDropdownFilter),
        ("direction", ChoicesDropdownFilter),
        "is_shadow",
        "is_false_positive",
        ("occurred_at", RangeDateTimeFilter),
    ]
    list_filter_submit = True
    date_hierarchy = "occurred_at"
    search_fields = ("=stream_id", "policy_label", "rule_label", "finding")
    search_help_text = _("Stream, policy, rule or what was found.")
    actions = ("mark_false_positive", "unmark_false_positive", "export")
    actions_list = ("counts",)
    fieldsets = [
        (None, {"fields": [("occurred_at", "recorded_at"), ("stream_id", "direction")]}),
        (
            _("What was found"),
            {
                "fields": [
                    ("policy_label", "policy_number"),
                    ("rule_label", "rule_kind"),
                    ("finding", "held_ms"),
                    ("start", "end"),
                    "excerpt",
                ]
            },
        ),
        (_("What was done"), {"fields": [("action", "outcome", "is_shadow")]}),
        (_("Whose"), {"fields": [("tenant", "tenant_label"), "deployment_label"]}),
        (_("Judged by people"), {"fields": ["is_false_positive", ("marked_by_label", "marked_at")]}),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Intervention]":
        """Brings along what the page of one links to."""
        rows: QuerySet[Intervention] = super().get_queryset(request)
        if request.resolver_match is not None and "object_id" in request.resolver_match.kwargs:
            return rows.select_related("tenant")
        return rows

    @display(description=_("Outcome"), ordering="outcome", label=_OUTCOME_COLOURS)  # type: ignore[untyped-decorator]
    def what(self, row: Intervention) -> str:
        """Returns a coloured word."""
        return row.get_outcome_display()

    @admin.display(description=_("Shadow"), ordering="is_shadow")
    def shadow(self, row: Intervention) -> object:
        """Returns a word where nothing was changed."""
        return _("shadow") if row.is_shadow else ""

    @display(description=_("Mark"), ordering="is_false_positive", label={_("false positive"): "warning"})  # type: ignore[untyped-decorator]
    def wrong(self, row: Intervention) -> object:
        """Returns a coloured word where a person said so."""
        return _("false positive") if row.is_false_positive else ""

    def has_mark_permission(self, request: HttpRequest) -> bool:
        """Who may change interventions may mark them, and nothing else."""
        return request.user.has_perm("guardrails.change_intervention")

    @admin.display(description=_("Excerpt"))
    def excerpt_start(self, row: Intervention) -> str:
        """Returns the beginning of what was kept."""
        return row.excerpt if len(row.excerpt) <= 60 else f"{row.excerpt[:60]}…"

    @admin.action(description=_("Mark as false positive"), permissions=["mark"])
    def mark_false_positive(self, request: HttpRequest, queryset: "QuerySet[Intervention]") -> None:
        """Says of the chosen ones that the rule found what it should not have."""
        self._mark(request, queryset, is_false_positive=True)

    @admin.action(description=_("Take back the mark"), permissions=["mark"])
    def unmark_false_positive(self, request: HttpRequest, queryset: "QuerySet[Intervention]") -> None:
        """Takes it back."""
        self._mark(request, queryset, is_false_positive=False)

    def _mark(self, request: HttpRequest, rows: "QuerySet[Intervention]", *, is_false_positive: bool) -> None:
        chosen = list(rows[:MARKED_AT_ONCE])
        for row in chosen:
            intervention_mark(intervention=row, is_false_positive=is_false_positive, actor=actor_of(request))
        told = ngettext("%d intervention is marked.", "%d interventions are marked.", len(chosen))
        messages.success(request, told % len(chosen))

    @admin.action(description=_("Export as CSV"), permissions=["view"])
    def export(self, request: HttpRequest, queryset: "QuerySet[Intervention]") -> StreamingHttpResponse:  # noqa: ARG002
        """Sends the chosen rows, or all that the filters leave, as a file."""
        return interventions_csv(queryset)

    @action(description=_("Counts by tenant"), url_path="counts", permissions=["view"], icon="bar_chart")  # type: ignore[untyped-decorator]
    def counts(self, request: HttpRequest) -> HttpResponse:
        """Shows how much was found for whom."""
        asked = request.GET.get("days", "")
        days = int(asked) if asked.isdecimal() and int(asked) in COUNTED_DAYS else COUNTED_DAYS[1]
        since = timezone.now() - timedelta(days=days)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Interventions by tenant"),
            "days": days,
            "choices": COUNTED_DAYS,
            "rows": intervention_counts(since=since),
            "since": since.strftime("%Y-%m-%d %H:%M:%S"),
        }
        return TemplateResponse(request, "guardrails/admin/counts.html", context)
