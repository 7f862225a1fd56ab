"""The latency page's numbers, for whoever may see them: read, computed, put into one answer."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.forms import Form
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from apps.ops.enums import LatencyTier
from apps.ops.latency.asked import COMPARED, OTHER, OTHER_LABEL, RANGES, USUAL_RANGE, Asked, AskedForm
from apps.ops.latency.goals import error_goal_for, goals_for
from apps.ops.latency.offered import Choices, Option
from apps.ops.latency.panels import PANELS, TILES, Panel, Tile
from apps.ops.latency.presentation import Json, before_json, goals_json, numbers_json
from apps.ops.latency.scopes import LatencyScope, TimeRange
from apps.ops.latency.selectors import fleet_series, latency_series
from apps.ops.models import LatencyMark

_LABELS = {"deployment": _("Deployment"), "tenant": _("Tenant"), "worker": _("Worker"), "key": _("API key")}
_STALE = _("Stale: no new numbers were stored lately.")
_STALE_OPERATORS = _("Stale: no new numbers were stored lately. Does Celery run, with its beat?")
_HINT = _("Choose a point to read it here.")
_HINT_OPERATORS = _("Choose a point to see the streams behind it.")

Links = list[dict[str, Any]]


def asked_of_page(request: HttpRequest) -> Asked:
    """Returns what a page is asked for; what makes no sense is left out."""
    form = AskedForm(request.GET)
    form.is_valid()
    return Asked.of_form(form)


def asked_of_numbers(request: HttpRequest) -> Asked:
    """Returns what numbers are asked for.

    Raises:
        ValidationError: Something makes no sense.
    """
    form = AskedForm(request.GET)
    form_check(form)
    return Asked.of_form(form)


def form_check(form: Form) -> None:
    """Checks what was asked.

    Raises:
        ValidationError: Something makes no sense.
    """
    if not form.is_valid():
        raise ValidationError([f"{name}: {error}" for name, errors in form.errors.items() for error in errors])


def numbers_answer(
    asked: Asked, *, has_fleet: bool, links: Links, choices: Callable[[], Choices] | None = None
) -> JsonResponse:
    """Returns the numbers; 503 with a reason where a store is away."""
    try:
        told = _told(asked, has_fleet=has_fleet, links=links)
        if choices is not None:
            told["choices"] = choices()
    except (RedisError, DatabaseError):
        return problem(str(_("The numbers cannot be read at the moment.")), status=503)
    return _unstored(JsonResponse(told))


def problem(text: str, *, status: int) -> JsonResponse:
    """Returns why there are no numbers."""
    return _unstored(JsonResponse({"problem": text}, status=status))


def page_context(asked: Asked, choices: Choices, *, has_fleet: bool) -> dict[str, Any]:
    """Returns what the templates of a page need; the numbers come later. Operators may ask for what no list has."""
    panels = [panel for panel in PANELS if has_fleet or not panel.is_of_fleet]
    tiles = [tile for tile in TILES if has_fleet or not tile.is_of_fleet]
    drawn = drawn_context(panels, tiles)
    return {
        **drawn,
        "asked": asked,
        "fields": [
            choice_field(name, asked.text(name), options, may_add=has_fleet) for name, options in choices.items()
        ],
        "ranges": [(name, label) for name, (_length, label) in RANGES.items()],
        "usual_range": USUAL_RANGE,
        "has_diagnosis": has_fleet,
        "point_hint": _HINT_OPERATORS if has_fleet else _HINT,
        "texts": {"stale": str(_STALE_OPERATORS if has_fleet else _STALE)},
        "compared": [*drawn["compared"], (OTHER, OTHER_LABEL)],
        "has_other": True,
    }


def drawn_context(panels: Sequence[Panel], tiles: Sequence[Tile]) -> dict[str, Any]:
    """Returns what `ops/latency/page.html` needs of what is drawn, and what it may be compared with."""
    return {
        "compared": [(name, label) for name, (_shift, label) in COMPARED.items()],
        "panels": panels,
        "panel_specs": [panel.spec for panel in panels],
        "tiles": tiles,
        "tile_specs": [tile.spec for tile in tiles],
    }


def choice_field(name: str, value: str, options: list[Option], *, may_add: bool) -> Json:
    """Returns a list of the page; `may_add`: a value that is not among the options is shown all the same."""
    known = {option for option, _label in options}
    if value not in known and may_add:
        options = [*options, (value, value)]
    return {
        "name": name,
        "label": _("Model") if name == "deployment" and not may_add else _LABELS[name],
        "value": value,
        "options": options,
        "is_fixed": len(options) == 1,
        "is_needless": len(options) == 1 and options[0][0] != "",
    }


def _told(asked: Asked, *, has_fleet: bool, links: Links) -> Json:
    now = timezone.now()
    shown, before, shift = asked.time_ranges(now)

    def read(scope: LatencyScope, time_range: TimeRange) -> Json:
        fleet = fleet_series(scope, time_range) if has_fleet else None
        return numbers_json(time_range, latency_series(scope, time_range), fleet, now=now)

    rolled = _rolled_until()
    return {
        **read(asked.scope, shown),
        "before": before_json(read(asked.scope, before), shift) if before is not None else None,
        "now": now.timestamp(),
        "rolled": rolled and rolled.timestamp(),
        "refresh": asked.refresh_seconds,
        "goals": goals_json(goals_for(asked.scope.deployment), error_goal_for(asked.scope.deployment)),
        "links": links,
    }


def _rolled_until() -> datetime | None:
    """Returns how far the database is; None before the first roll-up."""
    return LatencyMark.objects.filter(tier=LatencyTier.MINUTE).values_list("until", flat=True).first()


def _unstored(response: JsonResponse) -> JsonResponse:
    response["Cache-Control"] = "no-store"
    return response
