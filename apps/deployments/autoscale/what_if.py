"""The page on which a policy is tried on recorded samples, before it is anybody's."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminSelectWidget

from apps.deployments.autoscale.enums import Rule
from apps.deployments.autoscale.replay import ReplayPoint, replay
from apps.deployments.autoscale.selectors import samples_recorded
from apps.deployments.models import AutoscalePolicy

TRIED = (
    "min_workers",
    "max_workers",
    "scale_out_percent",
    "scale_out_seconds",
    "scale_out_step",
    "scale_in_percent",
    "scale_in_seconds",
    "scale_in_step",
    "cooldown_seconds",
    "idle_seconds",
    "queue_goal_seconds",
    "ttft_goal_seconds",
    "worker_requests_per_second",
    "time_zone",
    "schedule",
)
"""Fields of a policy that can be tried."""
CHART_POINTS = 240
CHANGES_SHOWN = 50


class HoursForm(forms.Form):
    """How far back."""

    hours = forms.TypedChoiceField(
        label=_("Samples of"),
        choices=[(1, _("1 hour")), (6, _("6 hours")), (24, _("24 hours"))],
        coerce=int,
        initial=6,
        widget=UnfoldAdminSelectWidget,
    )


def what_if(policy: AutoscalePolicy, *, hours: int) -> dict[str, Any]:
    """Returns what the page shows of `policy`, which carries the values that are tried."""
    result = replay(policy.terms, samples_recorded(policy=policy, hours=hours))
    shown = _thinned(result.points)
    labels = [f"{point.at:%H:%M:%S}" for point in shown]
    return {
        "replay": result,
        "changes": [
            {"at": at, "before": before, "target": one.target, "rule": Rule(one.rule.value).label, "reason": one.reason}
            for at, before, one in result.changes[-CHANGES_SHOWN:]
        ],
        "workers_chart": json.dumps(
            _chart(
                labels,
                (str(_("with this policy")), "#0891b2", [point.workers for point in shown]),
                (str(_("as it was")), "#9ca3af", [point.recorded for point in shown]),
            )
        ),
        "wait_chart": json.dumps(
            _chart(labels, (str(_("wait, estimated (s)")), "#f59e0b", [round(one.wait_seconds, 2) for one in shown]))
        ),
        "chart_options": json.dumps(CHART_OPTIONS),
    }


CHART_OPTIONS: dict[str, Any] = {
    "animation": False,
    "maintainAspectRatio": False,
    "interaction": {"mode": "index", "intersect": False},
    "scales": {
        "x": {"grid": {"display": False}, "ticks": {"color": "#9ca3af", "maxTicksLimit": 12}},
        "y": {"beginAtZero": True, "ticks": {"color": "#9ca3af", "precision": 0}},
    },
    "plugins": {"legend": {"display": True, "align": "end", "labels": {"color": "#9ca3af", "boxWidth": 10}}},
}


def _chart(labels: list[str], *lines: tuple[str, str, Sequence[float]]) -> dict[str, Any]:
    return {
        "labels": labels,
        "datasets": [
            {"label": label, "data": list(data), "borderColor": colour, "stepped": True, "pointRadius": 0}
            for label, colour, data in lines
        ],
    }


def _thinned(points: Sequence[ReplayPoint]) -> list[ReplayPoint]:
    """The point with the longest wait of each of so many equal parts: none is lost that matters."""
    size = max(1, -(-len(points) // CHART_POINTS))
    parts = (points[first : first + size] for first in range(0, len(points), size))
    return [max(part, key=lambda point: (point.wait_seconds, point.workers)) for part in parts]
