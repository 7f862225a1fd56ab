"""Admin of quotas."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from apps.quotas import services
from apps.quotas.models import Quota
from apps.tenants.service_admin import ServiceAdmin
from apps.tenants.services import Actor


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
    ]

    @admin.display(description=_("Target"), ordering="tenant__name")
    def target(self, quota: Quota) -> str:
        """Returns whom it limits."""
        return quota.target_label

    @admin.display(description=_("Budget"))
    def budget(self, quota: Quota) -> str:
        """Returns money and tokens per period."""
        parts = []
        if quota.max_budget is not None:
            parts.append(f"{quota.max_budget:f}".rstrip("0").rstrip("."))
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
