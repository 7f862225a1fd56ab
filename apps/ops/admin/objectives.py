"""Admin of objectives, with what is left of their error budgets; the diagnosis stands below it."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import display

from apps.ops.alerts.services import alerting_delete, alerting_save
from apps.ops.diagnosis.views import diagnosis_urls
from apps.ops.models import ServiceObjective
from apps.ops.objectives.budgets import budget_of, burn_rate, totals_until
from apps.tenants.service_admin import ServiceAdmin
from apps.tenants.services import Actor

HOUR = 3600.0
_NOT_KNOWN = "-"


@admin.register(ServiceObjective)
class ServiceObjectiveAdmin(ServiceAdmin):
    """What deployments promise, and how it goes."""

    empty_help = _("An objective says how many of a deployment's answers are to be how fast, and has an error budget.")

    list_display = ("deployment", "indicator", "goal_seconds", "target_percent", "window_days", "budget_left", "burn")
    list_filter = [("deployment", RelatedDropdownFilter), ("indicator", ChoicesDropdownFilter)]
    list_filter_submit = True
    list_select_related = ("deployment",)
    autocomplete_fields = ("deployment",)
    readonly_fields = ("budget_left", "burn", "created_at", "updated_at")
    fieldsets = [
        (None, {"fields": ["deployment", ("indicator", "goal_seconds"), ("target_percent", "window_days")]}),
        (_("How it goes"), {"fields": [("budget_left", "burn"), ("created_at", "updated_at")]}),
    ]

    def get_urls(self) -> list[URLPattern]:
        """Adds the diagnosis."""
        return [*diagnosis_urls(self.admin_site), *super().get_urls()]

    def get_readonly_fields(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: ServiceObjective | None = None,
    ) -> tuple[str, ...]:
        """Fixes the deployment once it is given."""
        return (*self.readonly_fields, "deployment") if obj is not None else self.readonly_fields

    @display(description=_("Error budget left"))  # type: ignore[untyped-decorator]
    def budget_left(self, objective: ServiceObjective) -> str:
        """Returns the share that is left of the window up to now, and of how many requests."""
        if not objective.pk:
            return _NOT_KNOWN
        try:
            budget = budget_of(objective, totals_until(timezone.now()))
        except RedisError:
            return _NOT_KNOWN
        return f"{budget.left:.1%} ({budget.spent.bad:,.0f} of {budget.allowed:,.0f} spent)"

    @display(description=_("Burn rate, last hour"))  # type: ignore[untyped-decorator]
    def burn(self, objective: ServiceObjective) -> str:
        """Returns how fast the budget goes: 1 is as fast as it may."""
        if not objective.pk:
            return _NOT_KNOWN
        try:
            return f"{burn_rate(objective, HOUR, totals_until(timezone.now())):.2g}"
        except RedisError:
            return _NOT_KNOWN

    def service_create(self, row: ServiceObjective, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the objective."""
        alerting_save(row=row, actor=actor)

    def service_update(self, row: ServiceObjective, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the objective."""
        alerting_save(row=row, actor=actor)

    def service_delete(self, row: ServiceObjective, actor: Actor) -> None:
        """Deletes the objective."""
        alerting_delete(row=row, actor=actor)
