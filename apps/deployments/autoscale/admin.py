"""Admin of policies, with their explanation and a what-if, and of decisions."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.deployments.autoscale import services
from apps.deployments.autoscale.enums import AutoscaleMode, DecisionResult
from apps.deployments.autoscale.selectors import decisions_latest, sample_latest
from apps.deployments.autoscale.what_if import TRIED, HoursForm, what_if
from apps.deployments.models import AutoscalePolicy, ScalingDecision
from apps.tenants.service_admin import ReadOnlyAdmin, ServiceAdmin
from apps.tenants.services import Actor

_MODE_COLOURS = {
    AutoscaleMode.OFF.label: "info",
    AutoscaleMode.SHADOW.label: "warning",
    AutoscaleMode.ON.label: "success",
}
_RESULT_COLOURS = {
    DecisionResult.DECIDED.label: "primary",
    DecisionResult.DONE.label: "success",
    DecisionResult.FAILED.label: "danger",
    DecisionResult.EXPIRED.label: "danger",
    DecisionResult.WITHDRAWN.label: "warning",
    DecisionResult.SHADOW.label: "info",
    DecisionResult.RECOMMENDED.label: "info",
}
_EXPLAINED = 10
"""Decisions that a policy's page shows."""


@admin.register(AutoscalePolicy)
class AutoscalePolicyAdmin(ServiceAdmin):
    """Policies: when a deployment gets more or fewer workers."""

    empty_help = _(
        "Without one, nobody starts or ends workers of a deployment by load. A new one begins in shadow mode."
    )

    list_display = ("deployment", "current_mode", "bounds", "executor", "last_reason", "last_error_at", "updated_at")
    list_filter = [("mode", ChoicesDropdownFilter), ("executor", ChoicesDropdownFilter)]
    list_select_related = ("deployment",)
    search_fields = ("deployment__name",)
    autocomplete_fields = ("deployment",)
    readonly_fields = ("explanation", "last_error", "last_error_at", "created_at", "updated_at")
    actions_detail = ("try_on_samples",)
    fieldsets = [
        (None, {"fields": ["deployment", "mode", ("min_workers", "max_workers")]}),
        (_("What is so, and why"), {"fields": ["explanation", ("last_error", "last_error_at")]}),
        (
            _("More and fewer"),
            {
                "fields": [
                    ("scale_out_percent", "scale_out_seconds", "scale_out_step"),
                    ("scale_in_percent", "scale_in_seconds", "scale_in_step"),
                    ("cooldown_seconds", "start_seconds", "drain_seconds"),
                    "idle_seconds",
                ]
            },
        ),
        (
            _("What counts as full load"),
            {
                "fields": [("queue_goal_seconds", "ttft_goal_seconds", "worker_requests_per_second")],
                "description": _("The KV cache counts by the share that is in use."),
            },
        ),
        (_("Schedule"), {"fields": ["time_zone", "schedule"]}),
        (_("Who starts and ends workers"), {"fields": ["executor", ("workload", "workload_kind", "namespace")]}),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[AutoscalePolicy]":
        """Brings the last reasons along."""
        rows: QuerySet[AutoscalePolicy] = super().get_queryset(request)
        decisions = ScalingDecision.objects.filter(deployment=OuterRef("deployment")).order_by("-at", "-pk")
        return rows.annotate(last_decided=Subquery(decisions.values("reason")[:1]))

    def get_readonly_fields(self, request: HttpRequest, obj: AutoscalePolicy | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes the deployment once it is given."""
        return (*self.readonly_fields, "deployment") if obj is not None else self.readonly_fields

    @display(description=_("Mode"), ordering="mode", label=_MODE_COLOURS)  # type: ignore[untyped-decorator]
    def current_mode(self, policy: AutoscalePolicy) -> str:
        """Returns a coloured word."""
        return policy.get_mode_display()

    @admin.display(description=_("Workers"))
    def bounds(self, policy: AutoscalePolicy) -> str:
        """Returns the fewest and the most."""
        return f"{policy.min_workers} - {policy.max_workers}"

    @admin.display(description=_("Last decision"))
    def last_reason(self, policy: Any) -> str:  # noqa: ANN401  # annotated by get_queryset
        """Returns why something was changed last."""
        return policy.last_decided or "-"

    @admin.display(description=_("Last decisions"))
    def explanation(self, policy: AutoscalePolicy) -> str:
        """Returns what was measured last, and the last decisions with their reasons."""
        context = {
            "sample": sample_latest(policy=policy),
            "decisions": decisions_latest(policy=policy, count=_EXPLAINED),
        }
        return render_to_string("deployments/admin/autoscale_explanation.html", context)

    @action(description=_("What if"), url_path="what-if", permissions=["view"], icon="query_stats")  # type: ignore[untyped-decorator]
    def try_on_samples(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shows what the policy, with other values where they are given, would have done. Nothing is saved."""
        policy = self.get_object(request, object_id)
        if policy is None:
            raise Http404
        hours = HoursForm(request.GET if "hours" in request.GET else {"hours": 6})
        form_class = self.get_form(request, policy, change=True, fields=list(TRIED))
        form = form_class(request.GET, instance=policy) if "max_workers" in request.GET else form_class(instance=policy)
        is_usable = hours.is_valid() and (not form.is_bound or form.is_valid())
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("What if: %s") % policy.deployment,
            "policy": policy,
            "form": form,
            "hours_form": hours,
            **(what_if(policy, hours=hours.cleaned_data["hours"]) if is_usable else {}),
        }
        return TemplateResponse(request, "deployments/admin/autoscale_what_if.html", context)

    def service_create(self, row: AutoscalePolicy, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the policy."""
        services.autoscale_policy_create(policy=row, actor=actor)

    def service_update(self, row: AutoscalePolicy, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the policy."""
        services.autoscale_policy_update(policy=row, actor=actor)

    def service_delete(self, row: AutoscalePolicy, actor: Actor) -> None:
        """Deletes the policy."""
        services.autoscale_policy_delete(policy=row, actor=actor)


@admin.register(ScalingDecision)
class ScalingDecisionAdmin(ReadOnlyAdmin):
    """Decisions as they were made: what led to them, and what became of them."""

    empty_help = _("What autoscale policies change, or would change in shadow mode, stands here with its reason.")

    list_display = ("at", "deployment", "change", "rule", "reason", "outcome", "result_text", "ended_at")
    list_filter = [
        ("deployment", RelatedDropdownFilter),
        ("result", ChoicesDropdownFilter),
        ("rule", ChoicesDropdownFilter),
        ("mode", ChoicesDropdownFilter),
    ]
    list_filter_submit = True
    date_hierarchy = "at"
    fieldsets = [
        (None, {"fields": ["deployment", ("at", "mode", "executor"), ("before", "target"), "rule", "reason"]}),
        (_("Inputs"), {"fields": ["inputs"]}),
        (_("Result"), {"fields": [("result", "ended_at"), "result_text", ("victims", "drain_until")]}),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[ScalingDecision]":
        """Brings the deployments along."""
        rows: QuerySet[ScalingDecision] = super().get_queryset(request)
        return rows.select_related("deployment")

    @admin.display(description=_("Workers"))
    def change(self, decision: ScalingDecision) -> str:
        """Returns before and after."""
        return str(decision)

    @display(description=_("Result"), ordering="result", label=_RESULT_COLOURS)  # type: ignore[untyped-decorator]
    def outcome(self, decision: ScalingDecision) -> str:
        """Returns a coloured word."""
        return decision.get_result_display()
