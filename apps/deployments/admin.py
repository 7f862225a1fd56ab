"""Admin of deployments and workers."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import display

from apps.deployments import services
from apps.deployments.adapters.admin import LoraAdapterAdmin
from apps.deployments.autoscale.admin import AutoscalePolicyAdmin, ScalingDecisionAdmin
from apps.deployments.breaker_admin import ShowsBreaker
from apps.deployments.check_views import check_urls
from apps.deployments.enums import EngineKind, WorkerState
from apps.deployments.form_layout import Fieldsets, fieldsets_for
from apps.deployments.forms import DeploymentForm
from apps.deployments.models import ModelDeployment, Worker
from apps.deployments.restarts.admin import RestartsWorkers, RollingRestartAdmin
from apps.deployments.warm_up import workers_warm_up
from apps.tenants.service_admin import ReadOnlyAdmin, ServiceAdmin
from apps.tenants.services import Actor

__all__ = [
    "AutoscalePolicyAdmin",
    "LoraAdapterAdmin",
    "ModelDeploymentAdmin",
    "RollingRestartAdmin",
    "ScalingDecisionAdmin",
    "WorkerAdmin",
]

_QUARANTINED = _("Quarantined")
_STATE_COLOURS: dict[object, str] = {
    _QUARANTINED: "danger",
    WorkerState.READY.label: "success",
    WorkerState.LOADING.label: "info",
    WorkerState.DRAINING.label: "warning",
    WorkerState.BROKEN.label: "danger",
    WorkerState.SLEEPING.label: "info",
    WorkerState.ENDED.label: "info",
    WorkerState.LOST.label: "danger",
}
_ENGINE_COLOURS = {EngineKind.VLLM.label: "primary", EngineKind.SIMULATED.label: "warning"}


@admin.register(ModelDeployment)
class ModelDeploymentAdmin(RestartsWorkers, ShowsBreaker, ServiceAdmin):
    """Deployments: what is served under which name."""

    list_display = (
        "name",
        "activity",
        "engine_kind",
        "model",
        "workers_ready",
        "visibility",
        "breaker",
        "trouble",
        "updated_at",
    )
    list_filter = ["is_active", ("engine", ChoicesDropdownFilter), "is_restricted"]
    search_fields = ("name", "model")
    autocomplete_fields = ("visible_tenants", "fallback")
    readonly_fields = (
        "id",
        "last_error_text",
        "last_error_at",
        "options_told",
        "breaker_told",
        "created_at",
        "updated_at",
    )
    actions_detail = ("restart_one_after_another", "open_breaker", "close_breaker")
    form = DeploymentForm

    class Media:
        js = ("deployments/engine_options.js",)
        css = {"all": ("deployments/engine_options.css",)}

    def get_urls(self) -> list[URLPattern]:
        """Adds the check."""
        return [*check_urls(self), *super().get_urls()]

    def get_fieldsets(self, request: HttpRequest, obj: ModelDeployment | None = None) -> Fieldsets:
        """Has presets and the check among the fields; who only looks sees all options as JSON."""
        may_write = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        return fieldsets_for(obj, may_write=may_write)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[ModelDeployment]":
        """Counts ready workers in the same query, and brings circuit breakers along."""
        rows: QuerySet[ModelDeployment] = super().get_queryset(request).select_related("breaker_standing")
        return rows.annotate(ready_total=Count("workers", filter=Q(workers__state=WorkerState.READY)))

    def get_readonly_fields(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: ModelDeployment | None = None,
    ) -> tuple[str, ...]:
        """Fixes the name once it is given."""
        return (*self.readonly_fields, "name") if obj is not None else self.readonly_fields

    @display(description=_("Active"), ordering="is_active", label={_("active"): "success", _("off"): "danger"})  # type: ignore[untyped-decorator]
    def activity(self, deployment: ModelDeployment) -> object:
        """Returns a coloured word."""
        return _("active") if deployment.is_active else _("off")

    @display(description=_("Engine"), ordering="engine", label=_ENGINE_COLOURS)  # type: ignore[untyped-decorator]
    def engine_kind(self, deployment: ModelDeployment) -> str:
        """Returns the engine; a simulated one stands out."""
        return deployment.get_engine_display()

    @display(description=_("Workers ready"), ordering="ready_total")  # type: ignore[untyped-decorator]
    def workers_ready(self, deployment: Any) -> int:  # noqa: ANN401  # annotated by get_queryset
        """Returns how many workers take requests."""
        count: int = deployment.ready_total
        return count

    @admin.display(description=_("Visible to"), ordering="is_restricted")
    def visibility(self, deployment: ModelDeployment) -> object:
        """Returns who sees it."""
        return _("chosen tenants") if deployment.is_restricted else _("everybody")

    @display(description=_("Trouble"), ordering="last_error_at", label={_("engine error"): "danger"})  # type: ignore[untyped-decorator]
    def trouble(self, deployment: ModelDeployment) -> object:
        """Returns whether a worker's engine refused to work."""
        return _("engine error") if deployment.last_error_at else ""

    @admin.display(description=_("Last engine error"))
    def last_error_text(self, deployment: ModelDeployment) -> SafeString | str:
        """Returns the engine's own words."""
        if not deployment.last_error:
            return "-"
        return format_html('<pre class="whitespace-pre-wrap">{}</pre>', deployment.last_error)

    def service_create(self, row: ModelDeployment, values: Mapping[str, Any], actor: Actor) -> None:
        """Creates the deployment."""
        services.deployment_create(deployment=row, visible_tenants=values["visible_tenants"], actor=actor)

    def service_update(self, row: ModelDeployment, values: Mapping[str, Any], actor: Actor) -> None:
        """Changes the deployment."""
        services.deployment_update(deployment=row, visible_tenants=values["visible_tenants"], actor=actor)

    def service_delete(self, row: ModelDeployment, actor: Actor) -> None:
        """Deletes the deployment."""
        services.deployment_delete(deployment=row, actor=actor)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers as they registered; the list follows them by itself."""

    list_display = (
        "deployment_name",
        "current_state",
        "engine_kind",
        "host",
        "pid",
        "load",
        "kv_cache",
        "cold_start",
        "last_seen_at",
        "reason",
    )
    list_filter = [
        ("state", ChoicesDropdownFilter),
        ("deployment", RelatedDropdownFilter),
        ("engine", ChoicesDropdownFilter),
    ]
    list_filter_submit = True
    search_fields = ("deployment_name", "host", "incarnation", "model")
    readonly_fields = ("process_page",)
    actions = ("warm_up",)
    fieldsets = [
        (None, {"fields": ["deployment", ("state", "engine"), "last_error"]}),
        (_("Health"), {"fields": [("engine_failures", "quarantined_at"), "process_page"]}),
        (_("Process"), {"fields": ["incarnation", ("host", "pid"), ("started_at", "last_seen_at", "ended_at")]}),
        (_("Model"), {"fields": ["model", "fingerprint", ("max_model_len", "max_num_seqs")]}),
        (
            _("Load"),
            {
                "fields": [
                    ("num_requests_running", "num_requests_waiting"),
                    ("kv_cache_usage", "tokens_generated", "cold_start_seconds"),
                ]
            },
        ),
    ]

    class Media:
        js = ("deployments/workers_live.js",)

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Worker]":
        """Brings the deployments along."""
        rows: QuerySet[Worker] = super().get_queryset(request)
        return rows.select_related("deployment")

    @display(description=_("State"), ordering="state", label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def current_state(self, worker: Worker) -> object:
        """Returns a coloured word."""
        is_quarantined = worker.quarantined_at is not None and worker.ended_at is None
        return _QUARANTINED if is_quarantined else worker.get_state_display()

    @admin.display(description=_("Drain, resume"))
    def process_page(self, worker: Worker) -> SafeString | str:
        """Returns the way to what an operator can do with it."""
        if worker.ended_at is not None:
            return "-"
        url = reverse("admin:ops_livestream_process", args=[worker.incarnation])
        return format_html('<a href="{}">{}</a>', url, _("Its streams, drain, resume after a quarantine"))

    @display(description=_("Engine"), ordering="engine", label=_ENGINE_COLOURS)  # type: ignore[untyped-decorator]
    def engine_kind(self, worker: Worker) -> str:
        """Returns the engine; a simulated one stands out."""
        return worker.get_engine_display()

    @admin.display(description=_("Running / waiting"), ordering="num_requests_running")
    def load(self, worker: Worker) -> str:
        """Returns both counts."""
        return f"{worker.num_requests_running} / {worker.num_requests_waiting}"

    @admin.display(description=_("KV cache"), ordering="kv_cache_usage")
    def kv_cache(self, worker: Worker) -> str:
        """Returns the share in use."""
        return f"{worker.kv_cache_usage:.0%}"

    @admin.display(description=_("Cold start"), ordering="cold_start_seconds")
    def cold_start(self, worker: Worker) -> str:
        """Returns the time from start to the first warm answer."""
        return f"{worker.cold_start_seconds:.1f} s" if worker.cold_start_seconds else "-"

    @admin.display(description=_("Reason"))
    def reason(self, worker: Worker) -> str:
        """Returns the end of the engine's message."""
        return worker.last_error.strip().rpartition("\n")[2][:120]

    @admin.action(description=_("Warm up chosen workers, where idle"), permissions=["view"])
    def warm_up(self, request: HttpRequest, queryset: "QuerySet[Worker]") -> None:
        """Asks for a dummy inference."""
        asked = workers_warm_up(workers=queryset)
        messages.info(request, ngettext("%d worker was asked.", "%d workers were asked.", asked) % asked)
