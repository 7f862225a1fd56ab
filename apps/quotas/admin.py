"""Admin of plans and quotas."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.deployments.prices import money_text
from apps.quotas import live, services
from apps.quotas.forms import PlanForm, SimulationForm
from apps.quotas.models import Plan, Quota
from apps.quotas.presentation import appraise, uses_told, waiting_told
from apps.tenants.service_admin import ServiceAdmin
from apps.tenants.services import Actor


@admin.register(Plan)
class PlanAdmin(ServiceAdmin):
    """What tenants get of a busy deployment beside each other."""

    form = PlanForm
    list_display = ("name", "weight", "priority", "tenant_count", "updated_at")
    search_fields = ("name",)
    fieldsets = [
        (None, {"fields": ["name"]}),
        (
            _("In a busy queue"),
            {
                "fields": ["weight", "priority", "request_priorities"],
                "description": _("A plan limits nothing: while nobody waits, everybody is served at once."),
            },
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Plan]":
        """Counts tenants in the same query."""
        rows: QuerySet[Plan] = super().get_queryset(request)
        return rows.annotate(tenants_total=Count("tenants"))

    @display(description=_("Tenants"), ordering="tenants_total")  # type: ignore[untyped-decorator]
    def tenant_count(self, plan: Any) -> int:  # noqa: ANN401  # annotated by get_queryset
        """Returns how many tenants have it."""
        count: int = plan.tenants_total
        return count

    def service_create(self, row: Plan, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the plan."""
        services.plan_create(plan=row, actor=actor)

    def service_update(self, row: Plan, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the plan."""
        services.plan_update(plan=row, actor=actor)

    def service_delete(self, row: Plan, actor: Actor) -> None:
        """Deletes the plan."""
        services.plan_delete(plan=row, actor=actor)


@admin.register(Quota)
class QuotaAdmin(ServiceAdmin):
    """Limits; a request must pass every one that covers it."""

    list_display = (
        "target",
        "scope",
        "deployment",
        "rpm_limit",
        "tpm_limit",
        "max_parallel_requests",
        "budget",
        "updated_at",
    )
    list_filter = [
        ("scope", ChoicesDropdownFilter),
        ("tenant", RelatedDropdownFilter),
        ("deployment", RelatedDropdownFilter),
    ]
    list_filter_submit = True
    list_select_related = ("tenant", "deployment", "api_key", "membership__user", "membership__tenant")
    search_fields = (
        "tenant__name",
        "tenant__slug",
        "deployment__name",
        "api_key__name",
        "api_key__public_id",
        "membership__user__email",
    )
    autocomplete_fields = ("tenant", "membership", "api_key", "deployment")
    fieldsets = [
        (
            _("Whom it limits"),
            {
                "fields": ["scope", "tenant", ("membership", "api_key"), "deployment"],
                "description": _("A member's or key's quota names its tenant as well."),
            },
        ),
        (_("Rates"), {"fields": [("rpm_limit", "tpm_limit"), "max_parallel_requests"]}),
        (_("Budgets"), {"fields": ["budget_duration", ("max_budget", "soft_budget"), "token_budget"]}),
        (
            _("For a while"),
            {"fields": [("override_factor", "override_until"), "override_reason"], "classes": ["collapse"]},
        ),
        (_("Now"), {"fields": ["use_now"]}),
    ]
    readonly_fields = ("use_now",)
    actions_list = ("simulate",)

    @admin.display(description=_("In use"))
    def use_now(self, quota: Quota) -> str:
        """Returns what is used of each limit at this moment."""
        try:
            states = live.quota_states(config=live.snapshot_current(), quota_ids=[quota.pk.hex])
        except RedisError:
            return str(_("Unknown: the stream store does not answer."))
        if not states:
            return str(_("Nothing yet."))
        return "; ".join(uses_told(states[0]))

    @action(description=_("What would a request get?"), url_path="simulate", icon="labs")  # type: ignore[untyped-decorator]
    def simulate(self, request: HttpRequest) -> HttpResponse:
        """Asks admission without being admitted; shows who waits."""
        form = SimulationForm(request.POST or None)
        appraisal = problem = None
        waiting: list[dict[str, object]] = []
        try:
            config = live.snapshot_current()
            if request.method == "POST" and form.is_valid():
                appraisal = appraise(config, form.cleaned_data)
            waiting = waiting_told(config)
        except RedisError:
            problem = _("The stream store does not answer; try again.")
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("What would a request get?"),
            "form": form,
            "appraisal": appraisal,
            "waiting": waiting,
            "problem": problem,
        }
        return TemplateResponse(request, "quotas/admin/simulate.html", context)

    @admin.display(description=_("Target"), ordering="tenant__name")
    def target(self, quota: Quota) -> str:
        """Returns whom it limits."""
        return quota.target_label

    @admin.display(description=_("Budget"))
    def budget(self, quota: Quota) -> str:
        """Returns money and tokens per period."""
        parts = []
        if quota.max_budget is not None:
            parts.append(money_text(quota.max_budget))
        if quota.token_budget is not None:
            parts.append(_("%(count)s tokens") % {"count": f"{quota.token_budget:,}"})
        return f"{', '.join(parts)} / {quota.get_budget_duration_display()}" if parts else ""

    def service_create(self, row: Quota, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the quota."""
        services.quota_create(quota=row, actor=actor)

    def service_update(self, row: Quota, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the quota."""
        services.quota_update(quota=row, actor=actor)

    def service_delete(self, row: Quota, actor: Actor) -> None:
        """Lifts the quota."""
        services.quota_delete(quota=row, actor=actor)
