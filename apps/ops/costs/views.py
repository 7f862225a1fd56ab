"""The page of costs, its numbers, its tables and their files; who may see them is the admin's affair."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.ops.costs.asked import STEPS, USUAL_RANGE, CostAsked, CostForm
from apps.ops.costs.panels import PANELS, TILES
from apps.ops.costs.presentation import cost_numbers_json
from apps.ops.costs.readings import known_deployments
from apps.ops.costs.selectors import cost_points, cost_report
from apps.ops.costs.tables import TABLES, notes_of
from apps.ops.latency.answers import choice_field, drawn_context, form_check, problem
from apps.ops.latency.asked import RANGES
from apps.ops.latency.presentation import Json, before_json
from apps.ops.latency.scopes import TimeRange
from apps.usage.csv_export import table_csv

_AWAY = _("The numbers cannot be read at the moment.")
_HINT = _("Choose a point to read it here.")
_TABLES = "ops/admin/costs_tables.html"


def page_context(request: HttpRequest) -> dict[str, Any]:
    """Returns what the page's template needs, the tables among it; its script asks for the numbers."""
    asked = _asked_of_page(request)
    names = ModelDeployment.objects.order_by("name").values_list("name", flat=True)
    options = [("", str(_("All deployments"))), *((name, name) for name in names)]
    return {
        "title": _("Costs"),
        "asked": asked,
        "fields": [choice_field("deployment", asked.deployment or "", options, may_add=True)],
        "ranges": [(name, RANGES[name][1]) for name in STEPS],
        "usual_range": USUAL_RANGE,
        "point_hint": _HINT,
        "texts": {"stale": ""},
        **drawn_context(PANELS, TILES),
        **_tables_context(request, asked),
    }


def numbers(request: HttpRequest) -> HttpResponse:
    """Answers with what the page draws."""
    try:
        return _unstored(JsonResponse(_told(_asked_of_numbers(request))))
    except ValidationError as error:
        return problem(" ".join(error.messages), status=400)
    except DatabaseError:
        return problem(str(_AWAY), status=503)


def tables(request: HttpRequest) -> HttpResponse:
    """Answers with the tables alone."""
    try:
        context = _tables_context(request, _asked_of_numbers(request))
    except ValidationError as error:
        return _unstored(render(request, _TABLES, {"problem": " ".join(error.messages)}, status=400))
    status = 503 if "problem" in context else 200
    return _unstored(render(request, _TABLES, context, status=status))


def export(request: HttpRequest) -> HttpResponse:
    """Sends one table as a file.

    Raises:
        Http404: There is no such table.
    """
    table = TABLES.get(request.GET.get("table", ""))
    if table is None:
        raise Http404
    asked = _asked_of_page(request)
    report = cost_report(asked.time_range(timezone.now()), asked.deployment)
    return table_csv(table.rows(report), table.csv_columns, f"costs-{table.name}.csv")


def _asked_of_page(request: HttpRequest) -> CostAsked:
    """Returns what is asked for; what makes no sense is left out."""
    form = CostForm(request.GET)
    form.is_valid()
    return CostAsked.of_form(form)


def _asked_of_numbers(request: HttpRequest) -> CostAsked:
    """Returns what is asked for.

    Raises:
        ValidationError: Something makes no sense.
    """
    form = CostForm(request.GET)
    form_check(form)
    return CostAsked.of_form(form)


def _told(asked: CostAsked) -> Json:
    now = timezone.now()
    known = known_deployments()

    def read(time_range: TimeRange) -> Json:
        return cost_numbers_json(time_range, cost_points(time_range, asked.deployment, known), now=now)

    shown, shift = asked.time_range(now), asked.shift()
    before = None if shift is None else TimeRange(shown.start - shift, shown.end - shift, shown.step)
    return {
        **read(shown),
        "before": None if before is None or shift is None else before_json(read(before), shift),
        "now": now.timestamp(),
        "rolled": None,
        "refresh": asked.refresh_seconds,
        "goals": {},
        "links": [],
    }


def _tables_context(request: HttpRequest, asked: CostAsked) -> dict[str, Any]:
    """Returns the tables, or what keeps them from being read."""
    try:
        report = cost_report(asked.time_range(timezone.now()), asked.deployment)
    except DatabaseError:
        return {"problem": _AWAY}
    query = request.GET.copy()
    query.pop("table", None)
    return {
        "tables": [table.shown(report) for table in TABLES.values()],
        "notes": notes_of(report),
        "query": query.urlencode(),
    }


def _unstored(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    return response
