"""Admin of restarts: how far they are, and why one has stopped."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from redis.exceptions import RedisError
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.deployments.models import ModelDeployment, RollingRestart
from apps.deployments.restarts import services
from apps.deployments.restarts.enums import RestartState
from apps.deployments.restarts.selectors import options_in_use, restart_last
from apps.tenants.service_admin import ReadOnlyAdmin, actor_of

_STATE_COLOURS = {
    RestartState.RUNNING.label: "info",
    RestartState.DONE.label: "success",
    RestartState.STOPPED.label: "danger",
}


class RestartsWorkers:
    """What a deployment's admin page has of it."""

    @action(  # type: ignore[untyped-decorator]
        description=_("Restart workers one after another"), permissions=["change"]
    )
    def restart_one_after_another(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then brings the workers to the present options."""
        deployment = self.get_object(request, object_id)  # type: ignore[attr-defined]
        if deployment is None:
            raise Http404
        if request.method != "POST":
            return self._ask(request, deployment)
        try:
            services.restart_begin(deployment=deployment, actor=actor_of(request))
            messages.success(request, _("The restart has begun; this page says how far it is."))
        except ValidationError as error:
            messages.warning(request, " ".join(error.messages))
        except RedisError:
            messages.error(request, _("The stream store does not answer; try again."))
        return HttpResponseRedirect(reverse("admin:deployments_modeldeployment_change", args=(object_id,)))

    def _ask(self, request: HttpRequest, deployment: ModelDeployment) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),  # type: ignore[attr-defined]
            "opts": ModelDeployment._meta,
            "original": deployment,
            "title": _("Restart workers one after another"),
            "told": _(
                "Each worker that runs older options ends when its streams have, after five minutes at most; what is"
                " left goes on at another one. The next one's turn comes when its successor is ready."
            ),
        }
        return TemplateResponse(request, "deployments/admin/ask.html", context)

    @admin.display(description=_("Options in use"))
    def options_told(self, deployment: ModelDeployment) -> SafeString | str:
        """Returns how many workers run older options than are stored, and how far the last restart is."""
        stored = ModelDeployment.objects.filter(pk=deployment.pk).first()
        if stored is None:
            return "-"
        # The row at hand may carry the values of a form that was refused.
        found = options_in_use(deployments=[stored])[stored.pk]
        told = (
            _("%(outdated)d of %(workers)d workers run older options.")
            % {"outdated": found.outdated, "workers": found.workers}
            if found.outdated
            else ngettext("%d worker runs these options.", "%d workers run these options.", found.workers)
            % found.workers
        )
        last = restart_last(deployment=deployment)
        if last is None:
            return told
        return format_html('{}<br><a href="{}">{}</a>', told, _address(last), _progress(last))


@admin.register(RollingRestart)
class RollingRestartAdmin(ReadOnlyAdmin):
    """Restarts that were, and those that go on."""

    list_display = ("deployment", "current_state", "progress", "started_at", "finished_at", "reason")
    list_filter = [("deployment", RelatedDropdownFilter), ("state", ChoicesDropdownFilter)]
    list_filter_submit = True
    list_select_related = ("deployment",)
    actions = ("stop_chosen",)
    fieldsets = [
        (None, {"fields": ["deployment", "state", "reason", "progress"]}),
        (_("Now"), {"fields": [("current", "current_since")]}),
        (_("Record"), {"fields": [("started_at", "finished_at"), "options"]}),
    ]

    @display(description=_("State"), ordering="state", label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def current_state(self, restart: RollingRestart) -> str:
        """Returns a coloured word."""
        return restart.get_state_display()

    @admin.display(description=_("Progress"))
    def progress(self, restart: RollingRestart) -> str:
        """Returns how many have successors."""
        return _progress(restart)

    @admin.action(description=_("Stop chosen restarts"), permissions=["view"])
    def stop_chosen(self, request: HttpRequest, queryset: "QuerySet[RollingRestart]") -> None:
        """Leaves the other workers as they are."""
        if not request.user.has_perm("deployments.change_modeldeployment"):
            messages.error(request, _("You may not change deployments."))
            return
        for restart in queryset:
            reason = str(_("Stopped by %s.") % request.user)
            services.restart_stop(restart=restart, reason=reason, actor=actor_of(request))


def _progress(restart: RollingRestart) -> str:
    told: Any = _("%(state)s: %(restarted)d of %(size)d restarted") % {
        "state": restart.get_state_display(),
        "restarted": restart.restarted,
        "size": restart.size,
    }
    return f"{told}. {restart.reason}" if restart.reason else f"{told}."


def _address(restart: RollingRestart) -> str:
    return reverse("admin:deployments_rollingrestart_change", args=(restart.pk,))
