"""Prefix affinity on a real Redis: to whom streams are left, for how long, and what that costs nobody."""

from collections.abc import Sequence

import pytest

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms, QuotaTerms
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import FinishReason, GenerateRequest, SamplingParams, StreamState, Usage
from headrace_wire.prefix_hashes import prefix_hashes
from headrace_wire.prefix_index import PrefixIndex
from headrace_wire.request_queue import CancelOutcome, Claimed, Preference, Verdict

from .conftest import GATEWAY, Wire

PATIENT = 60.0
"""Longer than any test takes: a stream that is left stays left."""
PLACES = 8
A, B, C = "worker-a", "worker-b", "worker-c"


def prompt(number: int, blocks: int = 10) -> list[bytes]:
    return prefix_hashes("salt", "m", [number] * 32 * blocks)


class Fleet:
    """Workers of one deployment."""

    def __init__(self, wire: Wire, names: Sequence[str]) -> None:
        self.wire, self.names = wire, names
        self.index = PrefixIndex(wire.functions)

    async def start(self) -> None:
        for name in self.names:
            await self.wire.queue.enlist(name, lease_seconds=60, channels=[redis_keys.control_key(name)])
            await self.renew(name)

    async def renew(self, name: str, places: int = PLACES) -> None:
        await self.wire.queue.renew(name, lease_seconds=60, owned=[], channels=[], serving=("m", places))

    async def admit(
        self,
        prefix: Sequence[bytes] = (),
        *,
        tenant: str = "t",
        seconds: float = PATIENT,
        band: int = 1,
        quotas: tuple[QuotaTerms, ...] = (),
        may_be_left: bool = True,
    ) -> str:
        request = GenerateRequest(new_stream_id(), tenant, "m", SamplingParams(max_tokens=8), "salt")
        call = self.wire.queue.admit_call(
            request,
            queue_limit=1000,
            queue_timeout_seconds=60,
            terms=AdmissionTerms(10, 8, quotas=quotas, band=band),
            prefix=prefix,
            prefer_seconds=seconds,
        )
        admission = self.wire.queue.parse_admission(await self.wire.functions.call(*call))
        assert admission.verdict is Verdict.QUEUED
        assert admission.may_be_left == (may_be_left and bool(prefix))
        return request.stream_id

    async def claim(self, name: str, want: int = 1, spare: int = 0, *, running: int = 0) -> list[Claimed]:
        serving = {"t": running} if running else {}
        return await self.wire.queue.claim(name, deployment="m", want=want, spare=spare, serving=serving)

    async def hold(self, name: str, hashes: Sequence[bytes]) -> None:
        assert await self.index.report(name, deployment="m", lease_seconds=60, added=hashes) is not None

    async def finish(self, one: Claimed, name: str) -> None:
        await self.wire.queue.settle(
            one.stream_id,
            epoch=one.epoch,
            incarnation=name,
            state=StreamState.FINISHED,
            log_ttl_seconds=10,
            finish_reason=FinishReason.STOP,
            usage=Usage(10, 5),
        )

    async def bells(self) -> dict[str, int]:
        keys = {"": redis_keys.bell_key("m"), **{name: redis_keys.own_bell_key(name) for name in self.names}}
        counts = {name: int(await self.wire.redis.llen(key)) for name, key in keys.items()}
        return {name: count for name, count in counts.items() if count}


@pytest.fixture
async def fleet(wire: Wire) -> Fleet:
    fleet = Fleet(wire, [A, B, C])
    await fleet.start()
    return fleet


def ids(claimed: Sequence[Claimed]) -> list[str]:
    return [one.stream_id for one in claimed]


# ---- who is preferred


async def test_a_stream_is_left_to_the_worker_that_holds_its_prompt(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    stream = await fleet.admit(prompt(1))
    assert await fleet.bells() == {B: 1}, "only that one is woken"
    assert await fleet.claim(A) == await fleet.claim(C) == []
    (one,) = await fleet.claim(B)
    assert (one.stream_id, one.preference, one.held_blocks) == (stream, Preference.TAKEN, 10)


async def test_what_nobody_holds_goes_to_anyone(fleet: Fleet) -> None:
    stream = await fleet.admit(prompt(1))
    assert await fleet.bells() == {"": 1}
    (one,) = await fleet.claim(C)
    assert (one.stream_id, one.preference, one.held_blocks) == (stream, Preference.NONE, 0)


async def test_a_claim_notes_what_will_be_computed(fleet: Fleet) -> None:
    """What waited already is left to the claimer, too."""
    first, second = await fleet.admit(prompt(1)), await fleet.admit(prompt(1))
    assert ids(await fleet.claim(A)) == [first]
    assert await fleet.claim(B) == []
    assert A in await fleet.bells(), "it is woken for what is left to it"
    (one,) = await fleet.claim(A)
    assert (one.stream_id, one.preference) == (second, Preference.TAKEN)


async def test_the_longest_prefix_counts(fleet: Fleet) -> None:
    long = prompt(1, blocks=40)
    await fleet.hold(A, long[:5])
    await fleet.hold(B, long[:30])
    await fleet.admit(long)
    assert await fleet.claim(A) == []
    assert (await fleet.claim(B))[0].held_blocks == 30


async def test_next_to_nothing_is_not_worth_a_wait(fleet: Fleet) -> None:
    await fleet.hold(A, prompt(1)[:1])
    await fleet.admit(prompt(1))
    assert len(await fleet.claim(B)) == 1
    await fleet.hold(C, prompt(2))
    await fleet.hold(B, prompt(2)[:9])
    await fleet.admit(prompt(2))
    assert len(await fleet.claim(B)) == 1, "it holds nearly as much"


async def test_when_the_time_is_over_anyone_takes_it(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    stream = await fleet.admit(prompt(1), seconds=0.0)
    (one,) = await fleet.claim(A)
    assert (one.stream_id, one.preference) == (stream, Preference.EXPIRED)


async def test_an_offer_wakes_the_others_for_what_still_waits(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    waits = await fleet.admit(prompt(1))
    taken = await fleet.admit(prompt(1), tenant="u")
    anyones = await fleet.admit(prompt(2))
    (one,) = await fleet.claim(B)
    assert one.stream_id in {waits, taken}
    rest = {waits, taken} - {one.stream_id}
    await fleet.wire.redis.delete(redis_keys.bell_key("m"))
    assert await fleet.wire.queue.offer([waits, taken, anyones, "unknown"]) == 1
    assert (await fleet.bells())[""] == len(rest)


async def test_alone_nothing_is_noted_or_left(wire: Wire) -> None:
    fleet = Fleet(wire, [A])
    await fleet.start()
    assert await fleet.index.report(A, deployment="m", lease_seconds=60, added=prompt(1)) is None
    stream = await fleet.admit(prompt(1), may_be_left=False)
    assert ids(await fleet.claim(A)) == [stream]
    assert await wire.redis.exists(redis_keys.held_key(A)) == 0
    assert await wire.redis.hget(redis_keys.pace_key("m"), f"running:{A}") is None


# ---- balance


async def test_a_full_worker_is_not_preferred(fleet: Fleet) -> None:
    await fleet.hold(A, prompt(1))
    for _ in range(PLACES):
        await fleet.admit()
    full = await fleet.claim(A, PLACES)
    assert len(full) == PLACES
    first = await fleet.admit(prompt(1))
    assert ids(await fleet.claim(B)) == [first]
    for one in full:
        await fleet.finish(one, A)
    await fleet.hold(C, prompt(2))
    await fleet.admit(prompt(2))
    assert await fleet.claim(A, running=0) == [], "its places are free again, and it is another's"


async def test_an_ended_stream_frees_its_place_at_once(fleet: Fleet) -> None:
    await fleet.hold(A, prompt(1))
    for _ in range(PLACES):
        await fleet.admit()
    full = await fleet.claim(A, PLACES)
    for name in (B, C):
        for _ in range(4):
            await fleet.admit()
        await fleet.claim(name, 4)
    await fleet.admit(prompt(1))
    for one in full[:6]:
        await fleet.finish(one, A)
    assert await fleet.claim(B, running=4) == []


async def test_a_popular_prefix_spreads_before_its_worker_is_overloaded(fleet: Fleet) -> None:
    taken = dict.fromkeys([A, B, C], 0)
    await fleet.hold(A, prompt(1))
    for _ in range(300):
        await fleet.admit(prompt(1))
        for name in (A, B, C):
            for one in await fleet.claim(name):
                taken[name] += 1
                await fleet.finish(one, name)
    mean = sum(taken.values()) / 3
    assert sum(taken.values()) == 300
    assert max(taken.values()) <= 1.3 * mean + 8
    holders = [await fleet.wire.redis.scard(redis_keys.held_key(name)) for name in (A, B, C)]
    assert holders.count(10) >= 2


async def test_the_less_busy_of_two_holders(fleet: Fleet) -> None:
    for name in (A, B):
        await fleet.hold(name, prompt(1))
    await fleet.admit()
    await fleet.claim(A)
    await fleet.admit(prompt(1))
    assert await fleet.bells() == {"": 1, B: 1}


# ---- the queue stays what it was


async def test_what_is_left_keeps_its_place(fleet: Fleet) -> None:
    """Streams that were passed over stand where they stood: first of their tenant, their tenant as little served."""
    await fleet.hold(B, prompt(1))
    left = [await fleet.admit(prompt(1)) for _ in range(3)]
    others = [await fleet.admit(tenant="u") for _ in range(2)]
    assert ids(await fleet.claim(A, 8)) == others
    names = ["c:t", "in:t", "out:t", "c:u", "n"]
    before = await fleet.wire.redis.hmget(redis_keys.served_key(1, "m"), names)
    assert await fleet.claim(A, 8) == []
    assert await fleet.wire.redis.hmget(redis_keys.served_key(1, "m"), names) == before
    assert await fleet.wire.redis.zscore(redis_keys.band_key(1, "m"), "t") == 0
    assert [place.position for place in await fleet.wire.queue.places(left) if place] == [1, 2, 3]
    late = await fleet.admit(tenant="u")
    assert ids(await fleet.claim(B, 8)) == [left[0], left[1], left[2], late]


async def test_passing_over_does_not_use_up_a_bands_turn(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    await fleet.admit(prompt(1), band=0)
    turn = await fleet.wire.redis.hget(redis_keys.pace_key("m"), "turn")
    for _ in range(5):
        assert await fleet.claim(A) == []
    assert int(await fleet.wire.redis.hget(redis_keys.pace_key("m"), "turn") or 0) == int(turn or 0)


async def test_a_spare_place_is_no_way_around(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    await fleet.admit(prompt(1), tenant="u")
    assert await fleet.claim(A, 0, 2, running=PLACES) == []
    assert len(await fleet.claim(B)) == 1


async def test_who_waits_for_his_own_limit_is_left_to_nobody(fleet: Fleet) -> None:
    one_at_a_time = (QuotaTerms("one", max_parallel_requests=1),)
    await fleet.hold(B, prompt(1))
    await fleet.admit(prompt(1), quotas=one_at_a_time)
    second = await fleet.admit(prompt(1), quotas=one_at_a_time)
    (first,) = await fleet.claim(B, 8)
    assert await fleet.claim(A, 8) == []
    await fleet.finish(first, B)
    assert await fleet.claim(A, 8) == []
    assert ids(await fleet.claim(B, 8)) == [second]


async def test_a_cancelled_stream_leaves_nothing(fleet: Fleet) -> None:
    await fleet.hold(B, prompt(1))
    stream = await fleet.admit(prompt(1))
    assert await fleet.claim(A) == []
    outcome, _ = await fleet.wire.queue.cancel(stream, tenant_id="t", reason="user", incarnation=GATEWAY)
    assert outcome is CancelOutcome.QUEUED
    assert await fleet.claim(B) == []
    assert await fleet.wire.queue.waiting("m") == 0
    assert await fleet.wire.queue.offer([stream]) == 0


async def test_many_left_ones_are_not_all_looked_at(fleet: Fleet) -> None:
    """A claim among thousands that are left stays short, and rings for nobody: it would come back at once."""
    await fleet.hold(B, prompt(1))
    for _ in range(40):
        await fleet.admit(prompt(1))
    await fleet.wire.redis.delete(redis_keys.bell_key("m"))
    assert await fleet.claim(A, 8) == []
    assert "" not in await fleet.bells()
    assert await fleet.wire.queue.waiting("m") == 40
    assert len(await fleet.claim(B, 8)) > 0


# ---- the index


async def test_other_tenants_share_nothing(fleet: Fleet) -> None:
    """The same prompt of another tenant is not found: its hashes are under another salt."""
    ours = prefix_hashes("salt of a", "m", list(range(640)))
    others = prefix_hashes("salt of b", "m", list(range(640)))
    await fleet.hold(B, ours)
    holder = await fleet.index.preferred("m", others)
    assert holder is not None
    assert holder.blocks == 0
    await fleet.admit(others, tenant="b")
    assert await fleet.bells() == {"": 1}
    assert [one.held_blocks for one in await fleet.claim(A)] == [0]


async def test_preferred_is_the_holder_else_who_has_least_to_do(fleet: Fleet) -> None:
    await fleet.hold(C, prompt(1))
    holder = await fleet.index.preferred("m", prompt(1))
    assert holder is not None
    assert (holder.incarnation, holder.blocks) == (C, 10)
    for _ in range(2):
        await fleet.admit()
    await fleet.claim(A)
    await fleet.claim(B)
    nobody = await fleet.index.preferred("m", [])
    assert nobody is not None
    assert nobody.incarnation == C
    assert await fleet.index.preferred("other", prompt(1)) is None


async def test_reports_add_remove_and_begin_anew(fleet: Fleet) -> None:
    many = [number.to_bytes(8, "little") for number in range(2500)]
    index = fleet.index
    assert await index.report(A, deployment="m", lease_seconds=60, added=many) == 2500
    assert await index.report(A, deployment="m", lease_seconds=60, removed=many[:2100]) == 400
    assert await index.report(A, deployment="m", lease_seconds=60, added=many[:1200], is_all=True) == 1200
    assert 0 < await fleet.wire.redis.pttl(redis_keys.held_key(A)) <= 60_000


async def test_a_worker_that_has_gone_is_not_waited_for(wire: Wire) -> None:
    fleet = Fleet(wire, [A, B, C])
    await fleet.start()
    await fleet.hold(C, prompt(1))
    await fleet.renew(C, places=0)  # it drains
    stream = await fleet.admit(prompt(1))
    assert ids(await fleet.claim(A)) == [stream]
    await fleet.renew(C)
    await wire.redis.zadd(redis_keys.places_key("m"), {f"{C} {PLACES}": 1})  # its lease has ended
    await fleet.hold(C, prompt(2))
    second = await fleet.admit(prompt(2))
    assert ids(await fleet.claim(B)) == [second]
