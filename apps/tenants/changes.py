"""What a save would change in a row: the difference that goes into the audit trail."""

from collections.abc import Iterable
from typing import Any

from django.db import models

Changes = dict[str, list[object]]
"""Field name to `[before, after]`."""

_UNTOLD = frozenset({"id", "created_at", "updated_at", "password", "secret_sha256", "webhook_secret", "last_login"})


def row_lock(row: models.Model) -> models.Model | None:
    """Returns the stored form of `row`, locked until the transaction ends, or None where it is not stored yet."""
    return type(row)._base_manager.select_for_update().filter(pk=row.pk).order_by("pk").first()


def row_changes(before: models.Model | None, after: models.Model) -> Changes:
    """Returns the fields that differ; all that are set where there was no row. Secrets and time stamps stay out."""
    changes: Changes = {}
    for field in after._meta.concrete_fields:
        if field.name in _UNTOLD:
            continue
        new = _plain(field, after)
        old = None if before is None else _plain(field, before)
        if new != old and not (before is None and new in (None, "", [], {})):
            changes[field.name] = [old, new]
    return changes


def set_changes(name: str, before: Iterable[models.Model], after: Iterable[models.Model]) -> Changes:
    """Returns the change of a many-to-many field, if there is one, as sorted labels."""
    old, new = sorted(str(row) for row in before), sorted(str(row) for row in after)
    return {name: [old, new]} if old != new else {}


def _plain(field: "models.Field[Any, Any]", row: models.Model) -> object:
    value: object = field.value_from_object(row)
    return str(value) if field.is_relation and value is not None else value
