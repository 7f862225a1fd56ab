"""Brings interventions from Redis into the database (`apps.tenants.entry_collector` says how it is exact)."""

import math

import msgspec

from apps.guardrails.enums import RuleKind
from apps.guardrails.intervention_records import interventions_record
from apps.guardrails.metrics import INTERVENTIONS_BACKLOG, INTERVENTIONS_SET_ASIDE, INTERVENTIONS_STORED
from apps.tenants.entry_collector import Counts, EntryCollector
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH
from headrace_wire import redis_keys
from headrace_wire.intervention_log import decode_intervention
from headrace_wire.interventions import Intervention

BATCH = 500
KEPT_ASIDE = 10_000

_LARGEST_OFFSET = 2**31 - 1
_LATEST_SECONDS = 4_102_444_800.0
"""The year 2100."""


def interventions_collect() -> int:
    """Stores what guardrails did since the last run; returns how many interventions were new."""
    return _collector().collect()


def interventions_retry() -> int:
    """Moves what was set aside back to what waits; returns how many."""
    return _collector().retry()


def _collector() -> EntryCollector[Intervention]:
    return EntryCollector(
        name="interventions",
        stream=redis_keys.interventions_key(),
        lock=redis_keys.interventions_lock_key(),
        aside=redis_keys.interventions_set_aside_key(),
        counts=Counts(stored=INTERVENTIONS_STORED, set_aside=INTERVENTIONS_SET_ASIDE, backlog=INTERVENTIONS_BACKLOG),
        read=_read,
        store=lambda interventions: interventions_record(interventions=interventions),
        batch=BATCH,
        kept_aside=KEPT_ASIDE,
    )


def _read(entry_id: bytes, fields: dict[bytes, bytes]) -> Intervention:
    """Returns the intervention with its time filled in; free texts are cut, and lose what no column takes.

    Raises:
        KeyError, ValueError: It is none, or holds what no column takes.
    """
    try:
        found = decode_intervention(fields[b"d"])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    refs = (found.stream_id, found.tenant_id, found.policy, found.rule)
    if not found.stream_id or not found.policy or any(len(ref) > REF_LENGTH or "\0" in ref for ref in refs):
        raise ValueError("an id is missing, too long or not a text")
    if not 0 <= found.start <= _LARGEST_OFFSET or not 0 <= found.end <= _LARGEST_OFFSET:
        raise ValueError("an offset is out of range")
    if not 0 <= found.policy_version <= _LARGEST_OFFSET or found.rule_kind not in {*RuleKind.values, ""}:
        raise ValueError("a version or a kind is not known")
    occurred_at = found.occurred_at or int(entry_id.partition(b"-")[0]) / 1000
    if not 0 < occurred_at <= _LATEST_SECONDS:
        raise ValueError("a time is out of range")
    return msgspec.structs.replace(
        found,
        occurred_at=occurred_at,
        held_ms=found.held_ms if math.isfinite(found.held_ms) else 0.0,
        deployment=_text(found.deployment, LABEL_LENGTH),
        finding=_text(found.finding, LABEL_LENGTH),
        excerpt=found.excerpt.replace("\0", "\ufffd"),
    )


def _text(text: str, longest: int) -> str:
    return text.replace("\0", "\ufffd")[:longest]
