"""The page of live streams, and the acts on them: all thin, over `apps.ops.live_streams`."""

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from redis.exceptions import RedisError

from apps.ops.live_streams import services
from apps.ops.live_streams.fleet import fleet_read
from apps.ops.live_streams.forms import DrainForm, FilterForm, NoteForm
from apps.ops.live_streams.lately import lately
from apps.ops.live_streams.presentation import fleet_rows, gateway_row, stream_rows, worker_row
from apps.ops.live_streams.selectors import StreamFilter, live_stream_page
from apps.ops.live_streams.services import MOST_AT_ONCE, Outcome
from apps.ops.models import LiveStream
from apps.tenants.service_admin import ReadOnlyAdmin, actor_of
from headrace_wire.fleet import WorkerState
from headrace_wire.ids import is_process

_AWAY = _("The stream store does not answer; what is alive cannot be told. The page looks again by itself.")
_LINKED = {
    "usage_usagerecord": "usage.view_usagerecord",
    "guardrails_intervention": "guardrails.view_intervention",
    "tenants_auditevent": "tenants.view_auditevent",
}
_ACTS: dict[str, tuple[Callable[..., list[Outcome]], Any, Any]] = {
    "kill": (
        services.streams_kill,
        _("End streams"),
        _(
            "Their engines stop at once and what was generated stands. Their clients are told that an operator ended "
            "the stream (`stream_cancelled`); the tenants are billed for what was generated."
        ),
    ),
    "migrate": (
        services.streams_migrate,
        _("Move streams"),
        _(
            "Each goes on at another worker of its deployment, token for token; its reader sees a pause and nothing "
            "else. What its worker had computed is computed again there, or taken from its checkpoint."
        ),
    ),
}

ACKNOWLEDGED_SECONDS = 10.0
"""How long an act waits for engines' acknowledgements before it says which are missing."""


@admin.register(LiveStream)
class LiveStreamAdmin(ReadOnlyAdmin):
    """Stands where the list of a model would: the streams are in Redis, and read from there in pages."""

    def get_urls(self) -> list[URLPattern]:
        """Adds the list without the page around it, the acts, and the processes."""
        guard = self.admin_site.admin_view
        return [
            path("live/", guard(self.live_view), name="ops_livestream_live"),
            path("act/", guard(self.act_view), name="ops_livestream_act"),
            path("process/<str:incarnation>/", guard(self.process_view), name="ops_livestream_process"),
            path("", guard(self.changelist_view), name="ops_livestream_changelist"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Shows the page; its script asks for the list again while it is looked at."""
        return self._page(request, "live_streams/page.html", {**self._list(request), **(extra_context or {})})

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """Answers with the list alone."""
        return self._page(request, "live_streams/live.html", self._list(request))

    def act_view(self, request: HttpRequest) -> HttpResponse:
        """Asks whether it is meant, then ends or moves the chosen streams and says what became of each."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb, chosen = request.POST.get("verb", ""), request.POST.getlist("stream")
        if verb not in _ACTS:
            raise Http404
        if not request.user.has_perm(f"ops.{verb}_livestream"):
            raise PermissionDenied
        act, title, meaning = _ACTS[verb]
        is_confirmed = "confirmed" in request.POST
        form = NoteForm(request.POST if is_confirmed else None)
        context = {"title": title, "meaning": meaning, "verb": verb, "chosen": chosen, "form": form}
        problem = _choice_problem(chosen)
        if problem is None and is_confirmed and form.is_valid():
            try:
                outcomes = act(
                    stream_ids=chosen,
                    note=form.cleaned_data["note"],
                    actor=actor_of(request),
                    wait_seconds=ACKNOWLEDGED_SECONDS,
                )
            except ValidationError as error:
                problem = " ".join(error.messages)
            else:
                return self._done(request, outcomes, context)
        return self._page(request, "live_streams/confirm.html", {**context, "problem": problem})

    def process_view(self, request: HttpRequest, incarnation: str) -> HttpResponse:
        """Shows one worker or gateway, what is left of its drain, and what can be done with it.

        Raises:
            Http404: No process is ever called so. Of one that could be, nobody keeps for good that it never was.
        """
        if not is_process(incarnation):
            raise Http404
        may_drain = request.user.has_perm("ops.drain_fleetprocess")
        if request.method == "POST" and not may_drain:
            raise PermissionDenied
        form: forms.Form = NoteForm() if incarnation.startswith("gateway") else DrainForm()
        if request.method == "POST":
            form = type(form)(request.POST)
            if "resume" in request.POST or form.is_valid():
                return self._drain(request, incarnation, form)
        return self._page(
            request,
            "live_streams/process.html",
            {
                "title": incarnation,
                "form": form,
                "may_drain": may_drain,
                "lately": lately(StreamFilter(worker=incarnation), may_see=_may_see(request)),
                **self._process(incarnation),
            },
        )

    # ---- parts

    def _list(self, request: HttpRequest) -> dict[str, Any]:
        form = FilterForm(request.GET)
        wanted = form.wanted()
        try:
            page = live_stream_page(
                wanted=wanted, deployments=form.deployments, number=_number(request.GET.get("page"))
            )
        except RedisError:
            return {"title": _("Live streams"), "filter": form, "problem": _AWAY}
        may_see = _may_see(request)
        query = request.GET.copy()
        query.pop("page", None)
        return {
            "title": _("Live streams"),
            "filter": form,
            "page": page,
            "rows": stream_rows(page.rows, may_see=may_see),
            "processes": fleet_rows(page.fleet),
            "query": query.urlencode(),
            "lately": lately(wanted, may_see=may_see),
            "may_kill": request.user.has_perm("ops.kill_livestream"),
            "may_migrate": request.user.has_perm("ops.migrate_livestream"),
            "most": MOST_AT_ONCE,
        }

    def _process(self, incarnation: str) -> dict[str, Any]:
        try:
            fleet = fleet_read()
        except RedisError:
            return {"problem": _AWAY}
        if worker := fleet.workers.get(incarnation):
            is_draining = worker.state is WorkerState.DRAINING
            return {
                "process": worker_row(worker, fleet),
                "may_resume": is_draining and not worker.is_leaving,
                "is_quarantined": bool(worker.quarantined_at) and not is_draining,
                "is_ending": worker.is_leaving,
                "is_alone": not fleet.others_ready(worker),
                "streams_url": f"{reverse('admin:ops_livestream_changelist')}?worker={incarnation}",
            }
        if gateway := fleet.gateways.get(incarnation):
            return {"process": gateway_row(gateway), "is_ending": gateway.state is WorkerState.DRAINING}
        return {"is_gone": True}

    def _drain(self, request: HttpRequest, incarnation: str, form: forms.Form) -> HttpResponse:
        actor = actor_of(request)
        try:
            if "resume" in request.POST:
                was_quarantined = services.worker_resume(incarnation=incarnation, actor=actor)
                told = _("It starts its engine again; this page shows how it does.")
                messages.success(request, told if was_quarantined else _("It takes streams again."))
            elif isinstance(form, DrainForm):
                services.worker_drain(incarnation=incarnation, actor=actor, **form.cleaned_data)
                messages.success(request, _("It takes nothing more; this page shows what is left."))
            else:
                services.gateway_drain(incarnation=incarnation, actor=actor, **form.cleaned_data)
                messages.success(request, _("It takes nothing more and ends; this page shows what is left."))
        except ValidationError as error:
            messages.error(request, " ".join(error.messages))
        return HttpResponseRedirect(request.path)

    def _done(self, request: HttpRequest, outcomes: Sequence[Outcome], context: dict[str, Any]) -> HttpResponse:
        open_ones = [outcome for outcome in outcomes if not outcome.is_done]
        if open_ones:
            return self._page(request, "live_streams/outcomes.html", {**context, "outcomes": outcomes})
        said = ngettext("Done with %(count)d stream.", "Done with all %(count)d streams.", len(outcomes))
        told = {outcome.said for outcome in outcomes}
        messages.success(request, f"{said % {'count': len(outcomes)}} {'; '.join(sorted(told)).capitalize()}.")
        return HttpResponseRedirect(reverse("admin:ops_livestream_changelist"))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = {**self.admin_site.each_context(request), "opts": self.opts, **context}
        return TemplateResponse(request, f"ops/admin/{template}", page)


def _may_see(request: HttpRequest) -> list[str]:
    return [name for name, permission in _LINKED.items() if request.user.has_perm(permission)]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 8 else 1


def _choice_problem(chosen: Sequence[str]) -> Any:  # noqa: ANN401  lazy text
    if not chosen:
        return _("No stream was chosen. Go back and tick those that you mean.")
    if len(chosen) > MOST_AT_ONCE:
        return _("At most %(most)d streams at once; choose fewer, or drain their worker.") % {"most": MOST_AT_ONCE}
    return None
