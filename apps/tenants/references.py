"""From the ids in messages to rows, for records that outlive what they speak of."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import models

REF_LENGTH = 64
LABEL_LENGTH = 200


def rows_by_ref(model: type[models.Model], refs: Iterable[str]) -> dict[str, Any]:
    """Returns the rows that these ids (UUIDs as 32 hex digits) name, by id; what is none or gone is left out."""
    wanted = {ref: identity for ref in refs if (identity := _uuid(ref)) is not None}
    rows = model._base_manager.in_bulk(wanted.values()) if wanted else {}
    return {ref: rows[identity] for ref, identity in wanted.items() if identity in rows}


def label_of(row: models.Model | None) -> str:
    """Returns what a row is called now, cut to what a column of labels takes; empty where there is none."""
    return str(row)[:LABEL_LENGTH] if row is not None else ""


def _uuid(ref: str) -> UUID | None:
    try:
        return UUID(ref)
    except ValueError:
        return None
