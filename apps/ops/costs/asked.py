"""What the page of costs is asked for: which deployment, of which time, beside which other time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from django import forms

from apps.ops.latency.asked import COMPARED, RANGES, MomentField
from apps.ops.latency.scopes import TimeRange, ceil_to, floor_to

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
STEPS = {"24h": _HOUR, "7d": _HOUR, "30d": _DAY, "90d": _DAY}
"""Of samples there are hours, of the ledger hours and days."""
USUAL_RANGE = "7d"
REFRESH_SECONDS = 600
"""There is something new every hour."""


class CostForm(forms.Form):
    """The parameters of page, numbers, tables and files."""

    deployment = forms.CharField(required=False, max_length=200)
    range = forms.ChoiceField(choices=[(name, RANGES[name][1]) for name in STEPS], required=False)
    compare = forms.ChoiceField(choices=[(name, label) for name, (_shift, label) in COMPARED.items()], required=False)
    end = MomentField()


@dataclass(frozen=True, slots=True)
class CostAsked:
    """A question that makes sense."""

    deployment: str | None
    range: str
    compare: str
    end: datetime | None
    """None: now."""

    @classmethod
    def of_form(cls, form: CostForm) -> Self:
        """Returns what a checked form asks for; fields that are not valid count as empty."""
        values: dict[str, Any] = form.cleaned_data
        return cls(
            values.get("deployment") or None,
            values.get("range") or USUAL_RANGE,
            values.get("compare") or "",
            values.get("end"),
        )

    @property
    def refresh_seconds(self) -> int | None:
        """None for a time that is past."""
        return REFRESH_SECONDS if self.end is None else None

    def time_range(self, now: datetime) -> TimeRange:
        """Returns the range in whole steps."""
        step, length = STEPS[self.range], RANGES[self.range][0]
        end = ceil_to(min(self.end or now, now), step)
        return TimeRange(floor_to(end - length, step), end, step)

    def shift(self) -> timedelta | None:
        """Returns how much earlier the time beside it is."""
        if not self.compare:
            return None
        return COMPARED[self.compare][0] or RANGES[self.range][0]
