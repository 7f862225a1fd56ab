"""Brings ended streams from Redis into the database (`apps.tenants.entry_collector` says how it is exact)."""

import msgspec

from apps.tenants.entry_collector import Counts, EntryCollector
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH
from apps.usage.enums import FinishReason, StreamState
from apps.usage.metrics import USAGE_BACKLOG, USAGE_SET_ASIDE, USAGE_STORED
from apps.usage.models import INCARNATION_LENGTH
from apps.usage.services import usage_record
from headrace_wire import redis_keys
from headrace_wire.usage_events import UsageEvent, usage_event

BATCH = 500
"""Events of one transaction."""

_LARGEST_NUMBER = 2**53
_LATEST_MS = 4_102_444_800_000
"""The year 2100; beyond it a number is no time."""


def usage_collect() -> int:
    """Stores what ended since the last run; returns how many streams were new to the ledger."""
    return _collector().collect()


def usage_retry() -> int:
    """Moves what was set aside back to the events that wait; returns how many."""
    return _collector().retry()


def _collector() -> EntryCollector[UsageEvent]:
    return EntryCollector(
        name="usage",
        stream=redis_keys.usage_key(),
        lock=redis_keys.usage_lock_key(),
        aside=redis_keys.usage_set_aside_key(),
        counts=Counts(stored=USAGE_STORED, set_aside=USAGE_SET_ASIDE, backlog=USAGE_BACKLOG),
        read=_read,
        store=lambda events: usage_record(events=events),
        batch=BATCH,
    )


def _read(entry_id: bytes, fields: dict[bytes, bytes]) -> UsageEvent:
    """Returns the event with its times filled in.

    Raises:
        KeyError, ValueError: It is none, or holds what no column takes.
    """
    event = usage_event(fields)
    texts = {event.stream_id: REF_LENGTH, event.tenant_id: REF_LENGTH, event.api_key_id: REF_LENGTH}
    texts |= {event.user_id: REF_LENGTH, event.deployment_id: REF_LENGTH, event.deployment: LABEL_LENGTH}
    texts |= {event.adapter: LABEL_LENGTH, event.owner: INCARNATION_LENGTH}
    if not event.stream_id or any(len(text) > longest or "\0" in text for text, longest in texts.items()):
        raise ValueError("a text is missing, too long or not a text")
    numbers = (event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.cost_micros)
    if not all(0 <= number <= _LARGEST_NUMBER for number in numbers):
        raise ValueError("a number is out of range")
    if event.state not in StreamState.values or event.finish_reason not in FinishReason.values:
        raise ValueError("the stream has not ended")
    ended_ms = event.ended_ms or int(entry_id.partition(b"-")[0])
    if not 0 <= event.admitted_ms <= _LATEST_MS or not 0 < ended_ms <= _LATEST_MS:
        raise ValueError("a time is out of range")
    return msgspec.structs.replace(event, admitted_ms=event.admitted_ms or ended_ms, ended_ms=ended_ms)
