"""What a latency page is asked for: whose numbers, of which time, beside which other time."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from apps.ops.latency.scopes import LatencyScope, TimeRange, ceil_to, floor_to
from headrace_wire.latency.store import SLOT_SECONDS

RANGES: dict[str, tuple[timedelta, Any]] = {
    "15m": (timedelta(minutes=15), _("15 min")),
    "1h": (timedelta(hours=1), _("1 h")),
    "3h": (timedelta(hours=3), _("3 h")),
    "6h": (timedelta(hours=6), _("6 h")),
    "24h": (timedelta(hours=24), _("24 h")),
    "7d": (timedelta(days=7), _("7 days")),
    "30d": (timedelta(days=30), _("30 days")),
    "90d": (timedelta(days=90), _("90 days")),
}
USUAL_RANGE = "1h"
BEFORE = "before"
COMPARED: dict[str, tuple[timedelta | None, Any]] = {
    BEFORE: (None, _("the time before")),
    "day": (timedelta(days=1), _("a day earlier")),
    "week": (timedelta(days=7), _("a week earlier")),
}
OTHER = "other"
"""Stands for a time that is told by its end."""
OTHER_LABEL = _("another time")
CHAT = "chat"
"""Stands for the key of streams that came without one."""
LONGEST_LIVE = timedelta(hours=6)
"""Of a longer range, ten seconds more or less show nothing."""

_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class MomentField(forms.DateTimeField):
    """A point in time that may be left empty, of the years in which something can have been measured.

    Everything that a page reckons from it (ranges, shifts, the time of another zone) stays a time that Python knows.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(required=False, **kwargs)

    def validate(self, value: datetime | None) -> None:
        """Refuses other years."""
        super().validate(value)
        if value is not None and not _FIRST <= value < _LAST:
            raise ValidationError(_("Times are from the year 2000 to 2099."), code="moment")


class AskedForm(forms.Form):
    """The parameters of page and numbers."""

    deployment = forms.CharField(required=False, max_length=200)
    tenant = forms.UUIDField(required=False)
    worker = forms.CharField(required=False, max_length=64)
    key = forms.RegexField(rf"^([0-9a-f]{{32}}|{CHAT})$", required=False)
    range = forms.ChoiceField(choices=[(name, label) for name, (_length, label) in RANGES.items()], required=False)
    compare = forms.ChoiceField(
        choices=[*((name, label) for name, (_shift, label) in COMPARED.items()), (OTHER, OTHER_LABEL)], required=False
    )
    end = MomentField()
    """Now where it is not given: the page then goes on."""
    other = MomentField()
    """When the time ends that is compared with, where that is another one."""

    def clean(self) -> None:
        """Refuses another time that is not told."""
        chosen = self.cleaned_data
        if chosen.get("compare") == OTHER and not chosen.get("other") and "other" not in self.errors:
            self.add_error("other", _("When does the other time end?"))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that makes sense."""

    scope: LatencyScope
    range: str
    compare: str
    end: datetime | None
    """None: now."""
    other: datetime | None = None
    """When the time beside it ends, where `compare` is `OTHER`."""

    @classmethod
    def of_form(cls, form: AskedForm) -> Self:
        """Returns what a checked form asks for; fields that are not valid count as empty."""
        values = form.cleaned_data
        key = values.get("key") or None
        scope = LatencyScope(
            deployment=values.get("deployment") or None,
            tenant_id=values.get("tenant"),
            key_id="" if key == CHAT else key,
            worker=values.get("worker") or None,
        )
        compare, other = values.get("compare") or "", values.get("other")
        if compare != OTHER or other is None:
            compare, other = compare if compare in COMPARED else "", None
        return cls(scope, values.get("range") or USUAL_RANGE, compare, values.get("end"), other)

    def text(self, name: str) -> str:
        """Returns what stands in a field of the page."""
        scope = self.scope
        if name == "key":
            return CHAT if scope.key_id == "" else scope.key_id or ""
        chosen = {"deployment": scope.deployment, "tenant": scope.tenant_id, "worker": scope.worker}[name]
        return "" if chosen is None else str(chosen)

    def of_tenant(self, tenant_id: UUID) -> Self:
        """Returns the same question about one tenant."""
        return replace(self, scope=replace(self.scope, tenant_id=tenant_id))

    @property
    def refresh_seconds(self) -> int | None:
        """How often there is something new to see; None for a time that is past."""
        if self.end is not None:
            return None
        return SLOT_SECONDS if RANGES[self.range][0] <= LONGEST_LIVE else 60

    def time_ranges(self, now: datetime) -> tuple[TimeRange, TimeRange | None, timedelta]:
        """Returns the range, the one beside it in the same steps, and how much later the first one is."""
        length = RANGES[self.range][0]
        end = min(self.end or now, now)
        whole = TimeRange.of(end - length, end, now=now)
        if not self.compare:
            return whole, None, timedelta()
        shift = end - min(self.other, now) if self.other is not None else COMPARED[self.compare][0] or length
        before = TimeRange.of(end - shift - length, end - shift, now=now)
        step = max(whole.step, before.step)
        whole = TimeRange(floor_to(whole.start, step), ceil_to(whole.end, step), step)
        shift = round(shift / step) * step
        return whole, TimeRange(whole.start - shift, whole.end - shift, step), shift
