"""Tables as CSV, page by page: an export of any size takes the memory of one page and holds no cursor open."""

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from io import StringIO
from typing import Any, Self

from asgiref.sync import sync_to_async
from django.db.models import Model, QuerySet
from django.http import HttpResponse, StreamingHttpResponse

from apps.deployments.prices import from_micros, money_text
from apps.usage.models import UsageRecord, UsageRollup

PAGE = 1_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CONTENT_TYPE = "text/csv; charset=utf-8"

Column = Callable[[Any], object]

_WHOSE = ("tenant", "api_key", "user", "deployment")
_ATTRIBUTION = [f"{whose}_{part}" for whose in _WHOSE for part in ("ref", "label")]
_NUMBERS = ["prompt_tokens", "cached_tokens", "completion_tokens"]


def named_columns(*names: str) -> dict[str, Column]:
    """Returns columns of attributes, under names for people who never saw the model."""

    def column(name: str) -> Column:
        return lambda row: getattr(row, name)

    return {name.replace("_ref", "_id").replace("_label", "_name"): column(name) for name in names}


def _columns(*names: str) -> dict[str, Column]:
    return {**named_columns(*names), "cost": lambda row: money_text(from_micros(row.cost_micros))}


RECORD_COLUMNS = _columns(
    "stream_id", "admitted_at", "ended_at", *_ATTRIBUTION, "state", "finish_reason", "source", *_NUMBERS
)
ROLLUP_COLUMNS = _columns("bucket", "start_at", *_ATTRIBUTION, "requests", *_NUMBERS)


def records_csv(records: "QuerySet[UsageRecord]") -> StreamingHttpResponse:
    """Returns the answer that has these records as a file."""
    return attachment(CsvPages(records, RECORD_COLUMNS), "usage-streams.csv")


def rollups_csv(rollups: "QuerySet[UsageRollup]") -> StreamingHttpResponse:
    """Returns the answer that has these sums as a file."""
    return attachment(CsvPages(rollups, ROLLUP_COLUMNS), "usage-sums.csv")


def attachment(pages: "CsvPages", name: str) -> StreamingHttpResponse:
    """Returns the answer that has these pages as a file of that name."""
    return StreamingHttpResponse(pages, content_type=_CONTENT_TYPE, headers=_headers(name))


def table_csv(rows: Iterable[object], columns: Mapping[str, Column], name: str) -> HttpResponse:
    """Returns the answer that has a table that is no query, and has a page's length, as a file of that name."""
    return HttpResponse(_lines(rows, columns, has_head=True), content_type=_CONTENT_TYPE, headers=_headers(name))


class CsvPages:
    """The lines of a table, oldest row first, a page at a time; each page goes on after the last one's key."""

    def __init__(self, rows: "QuerySet[Any]", columns: Mapping[str, Column]) -> None:
        self._rows = rows.order_by("pk")
        self._columns = columns
        self._after: object = None
        self._is_done = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_done:
            raise StopAsyncIteration
        return await sync_to_async(self._page)()

    def _page(self) -> bytes:
        is_first = self._after is None
        rows: list[Model] = list((self._rows if is_first else self._rows.filter(pk__gt=self._after))[:PAGE])
        self._is_done = len(rows) < PAGE
        if rows:
            self._after = rows[-1].pk
        return _lines(rows, self._columns, has_head=is_first)


def _headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _lines(rows: Iterable[object], columns: Mapping[str, Column], *, has_head: bool) -> bytes:
    text = StringIO()
    writer = csv.writer(text)
    if has_head:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(column(row)) for column in columns.values()])
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"  # a spreadsheet would run it; names are what tenants call things
    return value
