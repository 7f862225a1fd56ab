"""What waits to be computed ahead of requests: bounded, each once, in an order, and not for ever."""

import time

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import Prefill, PrefillPurpose
from headrace_wire.prefill_reports import PrefillOutcome
from headrace_worker.prefill_queue import MOST, MOST_PER_TENANT, PrefillQueue, Prefix

DRAFT, PROMPT_CACHE = PrefillPurpose.DRAFT, PrefillPurpose.PROMPT_CACHE


class Drops:
    """Remembers what a queue dropped."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, PrefillOutcome]] = []

    def __call__(self, prefix: Prefix, outcome: PrefillOutcome) -> None:
        self.seen.append((prefix.prefill.prefill_id, outcome))


def prefill(
    name: str, *, tenant: str = "t", first: int | None = None, seconds: float = 60, **fields: object
) -> Prefill:
    """Return a prefill of 32 tokens that no other name has."""
    ids = [first if first is not None else hash(name) % 1000, *range(1, 32)]
    expires_at_ms = int((time.time() + seconds) * 1000)
    return Prefill(name, tenant, f"salt-{tenant}", pack_token_ids(ids), expires_at_ms, **fields)  # type: ignore[arg-type]


def test_what_a_user_waits_for_goes_first() -> None:
    queue = PrefillQueue(Drops())
    queue.put(prefill("cache", first=1, purpose=PROMPT_CACHE))
    queue.put(prefill("typed", first=2, purpose=DRAFT))
    queue.put(prefill("typed later", first=3, purpose=DRAFT))
    order = []
    while (prefix := queue.first()) is not None:
        assert queue.take(prefix)
        order.append(prefix.prefill.prefill_id)
    assert order == ["typed", "typed later", "cache"]


def test_each_is_there_once() -> None:
    drops = Drops()
    queue = PrefillQueue(drops)
    queue.put(prefill("one", first=1))
    queue.put(prefill("same", first=1))
    queue.put(prefill("same of another", first=1, tenant="u"))
    queue.put(prefill("one", first=2))
    assert drops.seen == [("same", PrefillOutcome.DUPLICATE), ("one", PrefillOutcome.CANCELLED)]
    assert len(queue) == 2


def test_no_tenant_takes_the_places_of_all() -> None:
    drops = Drops()
    queue = PrefillQueue(drops)
    for number in range(MOST_PER_TENANT + 1):
        queue.put(prefill(f"a{number}", first=number, tenant="a"))
    assert drops.seen == [(f"a{MOST_PER_TENANT}", PrefillOutcome.FULL)]
    for number in range(MOST):
        queue.put(prefill(f"b{number}", first=number, tenant=f"b{number}"))
    assert len(queue) == MOST
    assert len(drops.seen) == 1 + MOST_PER_TENANT


def test_what_expired_is_not_begun_and_what_began_goes_on() -> None:
    drops = Drops()
    queue = PrefillQueue(drops)
    queue.put(prefill("begun", first=1, seconds=-1))
    (begun,) = queue._waiting.values()
    begun.is_begun = True
    queue.put(prefill("late", first=2, seconds=-1))
    assert queue.first() is begun
    assert drops.seen == [("late", PrefillOutcome.EXPIRED)]


def test_one_that_was_dropped_cannot_be_taken() -> None:
    queue = PrefillQueue(Drops())
    queue.put(prefill("one"))
    prefix = queue.first()
    assert prefix is not None
    queue.drop("one", PrefillOutcome.CANCELLED)
    queue.put(prefill("one"))
    assert not queue.take(prefix)
    assert len(queue) == 1


def test_tokens_found_are_told_from_tokens_computed() -> None:
    prefix = Prefix(prefill("one"))
    prefix.advance(16, cached=10, seconds=1)
    prefix.advance(32, cached=32, seconds=1)
    assert (prefix.cached, prefix.computed, prefix.seconds) == (26, 6, 2)
