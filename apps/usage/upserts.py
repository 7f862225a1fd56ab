"""The two statements that the ORM cannot say; both mean the same on PostgreSQL and on SQLite.

`bulk_create` can ignore conflicts, but then does not tell which rows are new; and it can overwrite on a conflict, but
not add to what is there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connection
from django.db.models import Field, Model

from apps.usage.models import UsageRollup

ROWS = 20
"""Of one statement: psycopg takes long over large ones (a fifth less time with 20 than with 500, measured)."""
SUMMED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micros")
_RENAMED = ("tenant", "tenant_label", "api_key_label", "user_label")
"""What a roll-up calls things follows the newest event."""


def rows_insert_new(rows: Sequence[Model], *, once: str) -> set[str]:
    """Stores the rows of one model whose value in the unique column `once` is not there yet; returns those values."""
    new: set[str] = set()
    if not rows:
        return new
    column = connection.ops.quote_name(once)
    with connection.cursor() as cursor:
        for insert, values in _inserts(type(rows[0]), rows):
            cursor.execute(f"{insert} ON CONFLICT ({column}) DO NOTHING RETURNING {column}", values)
            new.update(value for (value,) in cursor.fetchall())
    return new


def rollups_add(sums: Sequence[UsageRollup]) -> None:
    """Adds to the roll-ups of the same bucket and attribution, or makes them.

    `sums` has each of them once, and in the same order wherever two transactions might meet.
    """
    table = connection.ops.quote_name(UsageRollup._meta.db_table)
    once = next(rule for rule in UsageRollup._meta.total_unique_constraints if rule.name == "usage_rollup_once")
    changes = [f"{name} = {table}.{name} + EXCLUDED.{name}" for name in map(_column, SUMMED)]
    changes += [f"{name} = EXCLUDED.{name}" for name in map(_column, _RENAMED)]
    target = ", ".join(map(_column, once.fields))
    with connection.cursor() as cursor:
        for insert, values in _inserts(UsageRollup, sums):
            cursor.execute(f"{insert} ON CONFLICT ({target}) DO UPDATE SET {', '.join(changes)}", values)


def _column(name: str) -> str:
    return _quoted(next(field for field in _stored(UsageRollup) if field.name == name))


def _quoted(field: "Field[Any, Any]") -> str:
    return connection.ops.quote_name(field.column or field.name)


def _stored(model: type[Model]) -> "list[Field[Any, Any]]":
    return [field for field in model._meta.concrete_fields if not field.primary_key]


def _inserts(model: type[Model], rows: Sequence[Model]) -> Iterator[tuple[str, list[Any]]]:
    """Yields the beginnings of statements and their values; names come from the model, never from outside."""
    fields = _stored(model)
    one = f"({', '.join(['%s'] * len(fields))})"
    into = f"{connection.ops.quote_name(model._meta.db_table)} ({', '.join(map(_quoted, fields))})"
    for first in range(0, len(rows), ROWS):
        some = rows[first : first + ROWS]
        values = [field.get_db_prep_save(field.pre_save(row, True), connection) for row in some for field in fields]
        yield f"INSERT INTO {into} VALUES {', '.join([one] * len(some))}", values  # noqa: S608
