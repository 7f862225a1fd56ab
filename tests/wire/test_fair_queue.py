"""The fair queue on a real Redis: who is next, who waits for his own limit, and that nobody waits for ever."""

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms, QuotaTerms
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import FinishReason, GenerateRequest, SamplingParams, StreamState, Usage
from headrace_wire.request_queue import CancelOutcome, Claimed, GivenBack, Verdict

from .conftest import GATEWAY, WORKER, Wire

ONE_AT_A_TIME = QuotaTerms("one", max_parallel_requests=1)


async def admit(
    wire: Wire,
    tenant: str = "t",
    *quotas: QuotaTerms,
    prompt: int = 10,
    band: int = 1,
    weight: float = 1.0,
    deployment: str = "m",
) -> str:
    request = GenerateRequest(new_stream_id(), tenant, deployment, SamplingParams(max_tokens=8), "salt")
    terms = AdmissionTerms(prompt, 8, quotas=quotas, band=band, weight=weight)
    call = wire.queue.admit_call(request, queue_limit=100_000, queue_timeout_seconds=60, terms=terms)
    answer = wire.queue.parse_admission(await wire.functions.call(*call))
    assert answer.verdict is Verdict.QUEUED
    return request.stream_id


async def claim(wire: Wire, want: int = 1, deployment: str = "m") -> list[Claimed]:
    return await wire.queue.claim(WORKER, deployment=deployment, want=want)


async def next_id(wire: Wire) -> str | None:
    claimed = await claim(wire)
    return claimed[0].stream_id if claimed else None


async def finish(wire: Wire, one: Claimed, *, tokens: int = 5, prompt: int = 10) -> None:
    assert await wire.queue.settle(
        one.stream_id,
        epoch=one.epoch,
        incarnation=WORKER,
        state=StreamState.FINISHED,
        log_ttl_seconds=10,
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt, tokens),
    )


async def slots(wire: Wire, quota: str = "one") -> int:
    return int(await wire.redis.scard(redis_keys.slots_key(quota)))


# ---- order


async def test_the_least_served_tenant_is_next(wire: Wire) -> None:
    many = [await admit(wire, "busy") for _ in range(6)]
    few = [await admit(wire, "quiet") for _ in range(2)]
    order = [one.stream_id for one in await claim(wire, 8)]
    assert order[:4] == [many[0], few[0], many[1], few[1]] or order[:4] == [few[0], many[0], few[1], many[1]]
    assert [stream for stream in order if stream in many] == many, "a tenant's own order stays"


async def test_generated_tokens_count_twice_and_at_once(wire: Wire) -> None:
    talkative, terse = await admit(wire, "talkative", prompt=1), await admit(wire, "terse", prompt=1)
    running = {one.stream_id: one for one in await claim(wire, 2)}
    for tenant in ("talkative", "terse") * 2:
        await admit(wire, tenant, prompt=40)
    owned = [(talkative, running[talkative].epoch, 50), (terse, running[terse].epoch, 10)]
    await wire.queue.renew(WORKER, lease_seconds=60, owned=owned, channels=[])
    await wire.queue.renew(WORKER, lease_seconds=60, owned=owned, channels=[])
    row: Any = await wire.redis.hmget(redis_keys.served_key(1, "m"), ["c:talkative", "c:terse"])
    assert [float(value) for value in row] == [101, 21]
    assert [one.request.tenant_id for one in await claim(wire, 3)] == ["terse", "terse", "talkative"]
    await finish(wire, running[talkative], tokens=60, prompt=1)
    assert float((await wire.redis.hget(redis_keys.served_key(1, "m"), "c:talkative")) or 0) == 101 + 40 + 20


async def test_a_renewal_moves_each_tenants_counter_once_whatever_runs_of_it(wire: Wire) -> None:
    streams = [await admit(wire, tenant, weight=2.0, prompt=0) for tenant in ("many", "few") for _ in range(4)]
    epochs = {one.stream_id: one.epoch for one in await claim(wire, 8)}
    owned = [(stream, epochs[stream], 10 * at) for at, stream in enumerate(streams)]
    await wire.redis.config_resetstat()
    await wire.queue.renew(WORKER, lease_seconds=60, owned=owned, channels=[])
    used: Any = await wire.redis.info("commandstats")
    assert used["cmdstat_hincrbyfloat"]["calls"] == 2
    row: Any = await wire.redis.hmget(redis_keys.served_key(1, "m"), ["c:many", "c:few"])
    assert [float(value) for value in row] == [60, 220], "each stream's tokens twice, over the weight"
    charged: Any = [await wire.redis.hget(redis_keys.stream_key(stream), "charged") for stream in streams]
    assert charged == [None, *[b"%d" % (10 * at) for at in range(1, 8)]]


async def test_weights_share_in_proportion(wire: Wire) -> None:
    for _ in range(60):
        await admit(wire, "heavy", weight=3.0)
        await admit(wire, "light")
    tenants = [one.request.tenant_id for one in await claim(wire, 40)]
    assert 29 <= tenants.count("heavy") <= 31


async def test_who_comes_back_cannot_have_saved_up(wire: Wire) -> None:
    await admit(wire, "absent")
    for _ in range(30):
        await admit(wire, "present")
    await claim(wire, 20)
    for _ in range(20):
        await admit(wire, "absent")
    tenants = [one.request.tenant_id for one in await claim(wire, 10)]
    assert 4 <= tenants.count("absent") <= 6


async def test_a_higher_band_goes_first_and_none_starves(wire: Wire) -> None:
    low = await admit(wire, "patient", band=3)
    for _ in range(600):
        await admit(wire, "hasty", band=0)
    order = [one.stream_id for one in await claim(wire, 520)]
    assert order[0] != low
    assert low in order


async def test_what_was_served_before_goes_ahead(wire: Wire) -> None:
    (begun,) = [await admit(wire, "a")]
    (one,) = await claim(wire)
    await admit(wire, "b")
    assert (
        await wire.queue.requeue(begun, epoch=one.epoch, incarnation=WORKER, deployment="m", max_attempts=3)
        is GivenBack.QUEUED
    )
    assert await next_id(wire) == begun


# ---- spare places


async def claim_spare(wire: Wire, **serving: int) -> list[str]:
    claimed = await wire.queue.claim(WORKER, deployment="m", want=0, spare=1, serving=serving)
    return [one.request.tenant_id for one in claimed]


async def test_a_spare_place_is_for_a_tenant_of_whom_little_is_served(wire: Wire) -> None:
    await wire.redis.hset(redis_keys.served_key(1, "m"), "mean", "100")
    for _ in range(5):
        await admit(wire, "busy")
    assert await claim_spare(wire, busy=4) == []
    for _ in range(4):
        await admit(wire, "quiet")
    assert await claim_spare(wire, busy=4) == ["quiet"]
    assert await claim_spare(wire, busy=4, quiet=1) == ["quiet"], "two of six are less than its part"
    assert await claim_spare(wire, busy=4, quiet=3) == []
    assert len(await claim(wire, 9)) == 7, "the others wait for a place as before"


async def test_a_spare_place_is_not_for_who_was_served_more(wire: Wire) -> None:
    served = await admit(wire, "greedy", prompt=1)
    (one,) = await claim(wire)
    assert one.stream_id == served
    await admit(wire, "other")
    await admit(wire, "greedy")
    await finish(wire, one, tokens=10_000)
    await wire.redis.hset(redis_keys.served_key(1, "m"), "mean", "100")
    assert await claim_spare(wire, other=4) == [], "it is the other one's turn"
    await admit(wire, "greedy", band=0)
    assert await claim_spare(wire, other=4) == ["greedy"], "a higher band goes first"


async def test_only_who_comes_alone_knocks(wire: Wire) -> None:
    for tenant in ("a", "a", "b", "a"):
        await admit(wire, tenant)
    assert await wire.redis.xlen(redis_keys.knocks_key("m")) == 2


# ---- parallel requests


async def test_over_its_parallel_requests_a_stream_waits_and_others_pass(wire: Wire) -> None:
    mine = [await admit(wire, "t", ONE_AT_A_TIME) for _ in range(3)]
    other = await admit(wire, "t")
    claimed = await claim(wire, 10)
    assert [one.stream_id for one in claimed] == [mine[0], other]
    assert await slots(wire) == 1
    for expected in mine[1:]:
        await finish(wire, claimed[0])
        claimed = await claim(wire, 10)
        assert [one.stream_id for one in claimed] == [expected]
    await finish(wire, claimed[0])
    assert await slots(wire) == 0
    assert await wire.queue.waiting("m") == 0


async def test_a_slot_frees_waiting_streams_of_other_deployments(wire: Wire) -> None:
    await admit(wire, "t", ONE_AT_A_TIME)
    elsewhere = await admit(wire, "t", ONE_AT_A_TIME, deployment="n")
    (one,) = await claim(wire)
    assert await claim(wire, deployment="n") == []
    assert await wire.redis.delete(redis_keys.bell_key("n"))
    await finish(wire, one)
    assert await wire.redis.llen(redis_keys.bell_key("n")) == 1, "its workers are woken"
    assert [one.stream_id for one in await claim(wire, deployment="n")] == [elsewhere]


async def test_suspended_and_lost_streams_leave_their_slots(wire: Wire) -> None:
    stream_id, behind = [await admit(wire, "t", ONE_AT_A_TIME) for _ in range(2)]
    (one,) = await claim(wire, 5)
    assert (
        await wire.queue.suspend(
            stream_id, epoch=one.epoch, incarnation=WORKER, deployment="m", credit=10**6, reason="slow"
        )
        is GivenBack.SUSPENDED
    )
    (second,) = await claim(wire, 5)
    assert second.stream_id == behind
    await wire.redis.zadd(redis_keys.incarnations_key(), {WORKER: 1})
    (taken,) = (await wire.queue.reap(GATEWAY)).taken
    assert await slots(wire) == 1, "until it is known what becomes of it"
    await wire.queue.requeue(behind, epoch=taken.epoch, incarnation=GATEWAY, deployment="m", max_attempts=3)
    assert await slots(wire) == 0


async def test_a_cancelled_stream_does_not_keep_the_slot_that_was_meant_for_it(wire: Wire) -> None:
    first, second, third = [await admit(wire, "t", ONE_AT_A_TIME) for _ in range(3)]
    (one,) = await claim(wire, 5)
    assert one.stream_id == first
    await finish(wire, one)  # the second returns to its lane for it
    outcome, epoch = await wire.queue.cancel(second, tenant_id="t", reason="client", incarnation=GATEWAY)
    assert (outcome, epoch > 0) == (CancelOutcome.QUEUED, True)
    assert await next_id(wire) == third


async def test_parked_thousands_do_not_hold_a_claim_up_nor_others_back(wire: Wire) -> None:
    for _ in range(300):
        await admit(wire, "t", ONE_AT_A_TIME)
    other = await admit(wire, "t")
    await wire.redis.delete(redis_keys.bell_key("m"))
    seen: list[str] = []
    for _ in range(10):
        seen += [one.stream_id for one in await claim(wire, 5)]
        if other in seen:
            break
        assert await wire.redis.llen(redis_keys.bell_key("m")) > 0, "the worker is told to ask again"
    assert other in seen


async def test_no_tenant_takes_all_places_of_a_queue(wire: Wire) -> None:
    async def fill(tenant: str) -> int:
        for count in range(100):
            request = GenerateRequest(new_stream_id(), tenant, "m", SamplingParams(max_tokens=8), "salt")
            terms = AdmissionTerms(1, 8)
            call = wire.queue.admit_call(request, queue_limit=20, queue_timeout_seconds=60, terms=terms)
            answer = wire.queue.parse_admission(await wire.functions.call(*call))
            if answer.verdict is Verdict.FULL:
                return count
        return 100

    assert await fill("flood") == 15
    assert await fill("flood") == 0
    assert await fill("another") > 0
    assert await fill("third") > 0


async def test_who_waits_for_his_own_requests_takes_nobodys_place(wire: Wire) -> None:
    for _ in range(15):
        await admit(wire, "t", ONE_AT_A_TIME)
    (running,) = await claim(wire, 10)
    request = GenerateRequest(new_stream_id(), "other", "m", SamplingParams(max_tokens=8), "salt")
    call = wire.queue.admit_call(request, queue_limit=1, queue_timeout_seconds=60, terms=AdmissionTerms(1, 8))
    assert wire.queue.parse_admission(await wire.functions.call(*call)).verdict is Verdict.QUEUED
    mine = GenerateRequest(new_stream_id(), "t", "m", SamplingParams(max_tokens=8), "salt")
    terms = AdmissionTerms(1, 8, quotas=(ONE_AT_A_TIME,))
    call = wire.queue.admit_call(mine, queue_limit=14, queue_timeout_seconds=60, terms=terms)
    answer = wire.queue.parse_admission(await wire.functions.call(*call))
    assert (answer.verdict, answer.position, answer.is_own_queue) == (Verdict.FULL, 14, True)
    await finish(wire, running)
    assert await wire.redis.scard(redis_keys.parked_here_key("m")) == 13


# ---- waiting


async def test_places_are_true_and_fall(wire: Wire) -> None:
    busy = [await admit(wire, "busy") for _ in range(5)]
    quiet = await admit(wire, "quiet")
    told = [place.position for place in await wire.queue.places([*busy, quiet]) if place]
    assert told[:5] == sorted(told[:5])
    assert told[5] <= 2, "not behind all of the busy tenant's"
    await claim(wire, 3)
    later = await wire.queue.places([*busy, quiet])
    assert all(after is None or after.position <= before for after, before in zip(later, told, strict=True))
    assert await wire.queue.places(["strm-unknown"]) == [None]


async def test_a_parked_stream_knows_that_it_waits_for_its_own(wire: Wire) -> None:
    _, second = [await admit(wire, "t", ONE_AT_A_TIME) for _ in range(2)]
    await claim(wire, 5)
    (place,) = await wire.queue.places([second])
    assert place is not None
    assert (place.position, place.is_own_limit) == (1, True)


async def test_who_is_not_served_in_time_is_ended_though_his_gateway_is_gone(wire: Wire) -> None:
    stream_id = await admit(wire)
    assert not (await wire.queue.reap(GATEWAY)).taken
    await wire.redis.hset(redis_keys.stream_key(stream_id), "wait_until_ms", "1")
    await wire.redis.zadd(redis_keys.deadlines_key(), {stream_id: 1})
    (taken,) = (await wire.queue.reap(GATEWAY)).taken
    assert (taken.stream_id, taken.cancel_reason) == (stream_id, "queue_timeout")
    assert await wire.queue.waiting("m") == 0
    assert await claim(wire, 5) == []


class Lives:
    """Random lives of streams under two shared quotas, and what must be so after each step."""

    def __init__(self, wire: Wire, seed: int) -> None:
        self.wire = wire
        self.chance = random.Random(seed)
        self.running: dict[str, Claimed] = {}
        self.waiting: dict[str, str] = {}
        """Stream id to tenant."""

    async def arrive(self) -> None:
        both = QuotaTerms("a", max_parallel_requests=2), QuotaTerms("b", max_parallel_requests=1)
        covering = [quota for quota in both if self.chance.random() < 0.6]
        tenant, band = self.chance.choice("xyz"), self.chance.randint(0, 3)
        stream_id = await admit(self.wire, tenant, *covering, band=band, prompt=self.chance.randint(1, 50))
        self.waiting[stream_id] = tenant

    async def begin(self, want: int) -> int:
        claimed = await claim(self.wire, want)
        for one in claimed:
            del self.waiting[one.stream_id]
            self.running[one.stream_id] = one
        return len(claimed)

    async def give_up(self) -> None:
        stream_id = self.chance.choice(sorted(self.waiting))
        tenant = self.waiting.pop(stream_id)
        _, epoch = await self.wire.queue.cancel(stream_id, tenant_id=tenant, reason="client", incarnation=GATEWAY)
        assert await self.wire.queue.settle(
            stream_id, epoch=epoch, incarnation=GATEWAY, state=StreamState.CANCELLED, log_ttl_seconds=1
        )

    async def go_back(self) -> None:
        one = self.running.pop(self.chance.choice(sorted(self.running)))
        await self.wire.queue.requeue(
            one.stream_id, epoch=one.epoch, incarnation=WORKER, deployment="m", max_attempts=9, counts=False
        )
        self.waiting[one.stream_id] = one.request.tenant_id

    async def end(self) -> None:
        one = self.running.pop(self.chance.choice(sorted(self.running)))
        await finish(self.wire, one, tokens=self.chance.randint(0, 40))

    async def step(self) -> None:
        at = self.chance.random()
        if at < 0.4:
            await self.arrive()
        elif at < 0.6:
            await self.begin(self.chance.randint(1, 4))
        elif at < 0.7 and self.waiting:
            await self.give_up()
        elif at < 0.8 and self.running:
            await self.go_back()
        elif self.running:
            await self.end()
        assert await slots(self.wire, "a") <= 2
        assert await slots(self.wire, "b") <= 1
        assert await self.wire.queue.waiting("m") == len(self.waiting)

    async def drain(self) -> None:
        while self.waiting or self.running:
            while self.running:
                await self.end()
            assert await self.begin(10) or not self.waiting, "somebody waits though all slots are free"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
async def test_whatever_happens_slots_and_places_add_up(wire: Wire, seed: int) -> None:
    await wire.redis.flushall()
    await wire.functions.load()
    await wire.queue.enlist(WORKER, lease_seconds=600, channels=[])
    await wire.queue.enlist(GATEWAY, lease_seconds=600, channels=[])
    lives = Lives(wire, seed)
    for _ in range(60):
        await lives.step()
    await lives.drain()
    left: Any = await wire.redis.keys("*")
    kinds = {key.decode().split(":")[1] for key in left}
    assert not kinds & {"slots", "parked", "lane", "band", "waiting", "deadlines", "parked-here"}
