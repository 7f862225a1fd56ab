"""Admin of LoRA adapters: whose they are, what their check says, where they are loaded."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.deployments.adapters import services
from apps.deployments.adapters.enums import AdapterState
from apps.deployments.adapters.selectors import adapter_at_workers
from apps.deployments.models import LoraAdapter
from apps.tenants.service_admin import ServiceAdmin, actor_of
from apps.tenants.services import Actor

_STATE_COLOURS = {
    AdapterState.UNCHECKED.label: "warning",
    AdapterState.CHECKED.label: "success",
    AdapterState.REFUSED.label: "danger",
}


@admin.register(LoraAdapter)
class LoraAdapterAdmin(ServiceAdmin):
    """Weights of one tenant over a deployment's model."""

    empty_help = _(
        "An adapter is a model of its own to callers, served by the workers of the deployment that it was made for."
    )

    list_display = ("model_name", "tenant", "place", "current_state", "rank", "is_active", "checked_at")
    list_filter = [
        ("tenant", RelatedDropdownFilter),
        ("deployment", RelatedDropdownFilter),
        ("state", ChoicesDropdownFilter),
        "is_active",
    ]
    list_filter_submit = True
    list_select_related = ("tenant", "deployment")
    search_fields = ("name", "place", "tenant__name", "tenant__slug", "deployment__name")
    autocomplete_fields = ("tenant", "deployment")
    readonly_fields = (
        *("state", "last_error", "rank", "base_model", "revision", "checked_at", "workers_told"),
        *("id", "created_at", "updated_at"),
    )
    actions = ("check_chosen",)
    actions_detail = ("check_one",)
    fieldsets = [
        (
            None,
            {
                "fields": [("tenant", "deployment"), ("name", "place"), "is_active"],
                "description": _(
                    "Save it, then press “Check”: callers can use it once its files have passed, and workers load"
                    " exactly the files that were checked. After a change of the files check it again."
                ),
            },
        ),
        (_("Check"), {"fields": [("state", "checked_at"), "last_error", ("base_model", "rank"), "revision"]}),
        (_("Workers"), {"fields": ["workers_told"]}),
        (_("Record"), {"fields": [("id", "created_at", "updated_at")], "classes": ["collapse"]}),
    ]

    def get_fieldsets(self, request: HttpRequest, obj: LoraAdapter | None = None) -> Any:  # noqa: ANN401  as Django's
        """Leaves out what a new one cannot have yet."""
        fieldsets = super().get_fieldsets(request, obj)
        return fieldsets if obj is not None else fieldsets[:1]

    def get_readonly_fields(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: LoraAdapter | None = None,
    ) -> tuple[str, ...]:
        """Fixes whose it is once that is given."""
        return (*self.readonly_fields, "tenant") if obj is not None else self.readonly_fields

    @admin.display(description=_("Model"), ordering="name")
    def model_name(self, adapter: LoraAdapter) -> str:
        """Returns what callers write."""
        return str(adapter)

    @display(description=_("State"), ordering="state", label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def current_state(self, adapter: LoraAdapter) -> str:
        """Returns a coloured word."""
        return adapter.get_state_display()

    @admin.display(description=_("Loaded"))
    def workers_told(self, adapter: LoraAdapter) -> SafeString | str:
        """Returns what each live worker says of it."""
        found = adapter_at_workers(adapter=adapter)
        if not found:
            return str(_("No worker of the deployment is up."))
        lines = ((one.worker, _("loaded") if one.is_loaded else one.problem or _("not loaded yet")) for one in found)
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {}</li>", lines))

    @admin.action(description=_("Check chosen adapters"), permissions=["change"])
    def check_chosen(self, request: HttpRequest, queryset: "QuerySet[LoraAdapter]") -> None:
        """Reads their files."""
        for adapter in queryset.select_related("tenant", "deployment"):
            _judge(request, adapter)

    @action(description=_("Check"), permissions=["change"])  # type: ignore[untyped-decorator]
    def check_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then reads its files and says what they are."""
        adapter = self.get_object(request, object_id)
        if adapter is None:
            raise Http404
        if request.method != "POST":
            context = {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "original": adapter,
                "title": _("Check"),
                "told": _("Its files are read as they are now. Where they pass, callers get these from then on."),
            }
            return TemplateResponse(request, "deployments/admin/ask.html", context)
        _judge(request, adapter)
        return HttpResponseRedirect(reverse("admin:deployments_loraadapter_change", args=(object_id,)))

    def service_create(self, row: LoraAdapter, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the adapter."""
        services.adapter_create(adapter=row, actor=actor)

    def service_update(self, row: LoraAdapter, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the adapter."""
        services.adapter_update(adapter=row, actor=actor)

    def service_delete(self, row: LoraAdapter, actor: Actor) -> None:
        """Deletes the adapter."""
        services.adapter_delete(adapter=row, actor=actor)


def _judge(request: HttpRequest, adapter: LoraAdapter) -> None:
    found = services.adapter_judge(adapter=adapter, actor=actor_of(request))
    for problem in found.problems:
        messages.error(request, format_html("{}: {}", adapter, problem))
    for note in found.notes:
        messages.warning(request, format_html("{}: {}", adapter, note))
    if found.is_accepted:
        messages.success(request, _("%s can be used.") % adapter)
