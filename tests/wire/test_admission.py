"""Admission's decision against a plain model, on a real Redis: what fits is reserved, a refusal changes nothing."""

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from redis import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.admission import NO_LIMIT, AdmissionTerms, Payer, Prices, QuotaTerms, RefusalKind
from headrace_wire.functions import library_source
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import FinishReason, GenerateRequest, SamplingParams, StreamState, Usage
from headrace_wire.request_queue import Admission, Idempotency, RequestQueue, Verdict
from headrace_wire.usage_events import UsageEvent, usage_event

from .conftest import WORKER, Wire

FAR = 10**15
"""A period's end that no test sees, Unix ms."""
PRICES = Prices(prompt=2_000_000, cached=500_000, completion=3_000_000)


def quota(quota_id: str = "q", **limits: Any) -> QuotaTerms:
    return QuotaTerms(quota_id, **{"period": "p", "period_end_ms": FAR, **limits})


async def admit(
    wire: Wire, *quotas: QuotaTerms, prompt: int = 10, most: int = 30, idempotency: Idempotency | None = None
) -> tuple[str, Admission]:
    request = GenerateRequest(new_stream_id(), "t", "m", SamplingParams(max_tokens=most), "salt")
    terms = AdmissionTerms(prompt, most, PRICES, Payer("key", "user", "deployment"), quotas)
    call = wire.queue.admit_call(
        request, queue_limit=10_000, queue_timeout_seconds=60, terms=terms, idempotency=idempotency
    )
    return request.stream_id, wire.queue.parse_admission(await wire.functions.call(*call))


async def end(wire: Wire, stream_id: str, usage: Usage, state: StreamState = StreamState.FINISHED) -> bool:
    claimed = {one.stream_id: one for one in await wire.queue.claim(WORKER, deployment="m", want=1000)}
    return await wire.queue.settle(
        stream_id,
        epoch=claimed[stream_id].epoch,
        incarnation=WORKER,
        state=state,
        log_ttl_seconds=10,
        finish_reason=FinishReason.STOP,
        usage=usage,
    )


async def everything(wire: Wire) -> dict[bytes, bytes]:
    """Return all that Redis holds, byte for byte."""
    keys: Any = await wire.redis.keys("*")
    dumps: Any = await asyncio.gather(*(wire.redis.dump(key) for key in keys))
    return dict(zip(keys, dumps, strict=True))


async def budget(wire: Wire, quota_id: str = "q", period: str = "p") -> tuple[int, int]:
    row: Any = await wire.redis.hmget(redis_keys.budget_key(quota_id, period), ["tokens", "micros"])
    return int(row[0] or 0), int(row[1] or 0)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"rpm_limit": 1}, RefusalKind.RPM),
        ({"tpm_limit": 50}, RefusalKind.TPM),
        ({"token_budget": 50}, RefusalKind.TOKENS),
        ({"max_budget_micros": 150}, RefusalKind.MONEY),
    ],
)
async def test_of_many_at_once_exactly_what_fits_passes(wire: Wire, limits: dict[str, Any], kind: RefusalKind) -> None:
    answers = await asyncio.gather(*(admit(wire, quota(**limits)) for _ in range(50)))
    assert [answer.verdict for _, answer in answers].count(Verdict.QUEUED) == 1
    refused = [answer.refusal for _, answer in answers if answer.verdict is Verdict.REFUSED]
    assert {refusal.kind for refusal in refused if refusal} == {kind}


async def test_a_refusal_changes_nothing(wire: Wire) -> None:
    await admit(wire, quota("a", rpm_limit=9), quota("b", token_budget=50))
    before = await everything(wire)
    _, refused = await admit(
        wire, quota("a", rpm_limit=9), quota("b", token_budget=50), idempotency=Idempotency("key", "body", 7)
    )
    assert refused.verdict is Verdict.REFUSED
    assert await everything(wire) == before


async def test_more_than_a_minute_gives_never_fits(wire: Wire) -> None:
    _, answer = await admit(wire, quota(tpm_limit=39))
    assert answer.refusal is not None
    assert answer.refusal.kind is RefusalKind.TOO_LARGE
    assert answer.refusal.retry_after_seconds == -1


async def test_the_retry_time_is_true(wire: Wire) -> None:
    began = time.monotonic()
    await admit(wire, quota(rpm_limit=6))
    for _ in range(5):
        await admit(wire, quota(rpm_limit=6))
    _, refused = await admit(wire, quota(rpm_limit=6))
    assert refused.refusal is not None
    wait_ms = math.ceil(refused.refusal.retry_after_seconds * 1000)
    passed_ms = (time.monotonic() - began) * 1000
    assert 9_990 - passed_ms <= wait_ms <= 10_000, "one of six comes back every ten seconds"
    key = redis_keys.bucket_key("q")
    at = int((await wire.redis.hget(key, "rpm_ms")) or 0)
    await wire.redis.hset(key, "rpm_ms", str(at - wait_ms))
    _, answer = await admit(wire, quota(rpm_limit=6))
    assert answer.verdict is Verdict.QUEUED


async def test_all_quotas_must_pass_and_the_longest_wait_is_told(wire: Wire) -> None:
    quick, slow = quota("quick", rpm_limit=60), quota("slow", rpm_limit=1)
    await admit(wire, quick, slow)
    _, answer = await admit(wire, quick, slow)
    assert answer.refusal is not None
    assert answer.refusal.quota_id == "slow"
    assert answer.rates.requests is not None
    assert (answer.rates.requests.limit, answer.rates.requests.remaining) == (1, 0)


async def test_what_was_not_used_goes_back_to_where_it_came_from(wire: Wire) -> None:
    began = time.monotonic()
    terms = quota(tpm_limit=100, token_budget=1000, max_budget_micros=10_000)
    stream_id, answer = await admit(wire, terms)
    assert answer.rates.tokens is not None
    assert answer.rates.tokens.remaining == 60
    assert await budget(wire) == (40, 10 * 2 + 30 * 3)
    assert await end(wire, stream_id, Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4))
    assert await budget(wire) == (15, 6 * 2 + 2 + 5 * 3)
    level = float((await wire.redis.hget(redis_keys.bucket_key("q"), "tpm")) or 0)
    assert 85 <= level <= 85 + (time.monotonic() - began) * 100 / 60 + 0.1, "a minute gives 100"


async def test_a_stream_that_ends_in_the_next_period_is_booked_where_it_began(wire: Wire) -> None:
    stream_id, _ = await admit(wire, quota(token_budget=1000, period="old"))
    await admit(wire, quota(token_budget=1000, period="old", period_end_ms=1, next_period="new", next_end_ms=FAR))
    assert await budget(wire, period="new") == (40, 110)
    await end(wire, stream_id, Usage(10, 1))
    assert await budget(wire, period="old") == (11, 23)
    assert await budget(wire, period="new") == (40, 110)


async def test_the_ledger_gets_one_event_whoever_settles_how_often(wire: Wire) -> None:
    stream_id, _ = await admit(wire, quota(token_budget=1000))
    (claimed,) = await wire.queue.claim(WORKER, deployment="m", want=1)

    async def settle() -> bool:
        return await wire.queue.settle(
            stream_id,
            epoch=claimed.epoch,
            incarnation=WORKER,
            state=StreamState.CANCELLED,
            log_ttl_seconds=10,
            finish_reason=FinishReason.ABORT,
            usage=Usage(10, 3, 8),
        )

    assert sorted(await asyncio.gather(*(settle() for _ in range(20)))) == [False] * 19 + [True]
    rows: Any = await wire.redis.xrange(redis_keys.usage_key())
    (event,) = [usage_event(fields) for _, fields in rows]
    assert event == UsageEvent(
        stream_id=stream_id,
        tenant_id="t",
        api_key_id="key",
        user_id="user",
        deployment_id="deployment",
        deployment="m",
        state=StreamState.CANCELLED,
        finish_reason=FinishReason.ABORT,
        prompt_tokens=10,
        cached_tokens=8,
        completion_tokens=3,
        cost_micros=2 * 2 + 4 + 3 * 3,
        admitted_ms=event.admitted_ms,
        ended_ms=event.ended_ms,
        owner=WORKER,
    )
    assert 0 < event.admitted_ms <= event.ended_ms


async def test_a_soft_budget_is_told_once_a_period(wire: Wire) -> None:
    for _ in range(3):
        stream_id, answer = await admit(wire, quota(soft_budget_micros=40))
        assert answer.verdict is Verdict.QUEUED
        await end(wire, stream_id, Usage(10, 10))
    rows: Any = await wire.redis.xrange(redis_keys.soft_limits_key())
    assert [fields for _, fields in rows] == [{b"quota": b"q", b"period": b"p", b"micros": b"50", b"limit": b"40"}]


# ---- many steps, against a model


@dataclass
class ModelQuota:
    """What a quota should hold, told in Python: levels as of the last step, budgets to the unit."""

    terms: QuotaTerms
    rpm: float = 0
    tpm: float = 0
    tokens: int = 0
    micros: int = 0

    def __post_init__(self) -> None:
        self.rpm, self.tpm = self.terms.rpm_limit, self.terms.tpm_limit

    def fits(self, tokens: int, micros: int, *, slack: float) -> bool:
        """Say whether a request fits; `slack` seconds may have refilled the buckets more than the model knows."""
        t = self.terms
        return all(
            (
                t.rpm_limit == NO_LIMIT or min(t.rpm_limit, self.rpm + t.rpm_limit * slack / 60) >= 1,
                t.tpm_limit == NO_LIMIT or min(t.tpm_limit, self.tpm + t.tpm_limit * slack / 60) >= tokens,
                t.token_budget == NO_LIMIT or self.tokens + tokens <= t.token_budget,
                t.max_budget_micros == NO_LIMIT or self.micros + micros <= t.max_budget_micros,
            )
        )

    def pass_time(self, seconds: float) -> None:
        self.rpm = min(self.terms.rpm_limit, self.rpm + self.terms.rpm_limit * seconds / 60)
        self.tpm = min(self.terms.tpm_limit, self.tpm + self.terms.tpm_limit * seconds / 60)


@dataclass
class Open:
    """An admitted stream that has not ended."""

    tokens: int
    micros: int
    prompt: int
    most: int
    members: list[ModelQuota] = field(default_factory=list)


LIMIT = st.one_of(st.just(NO_LIMIT), st.integers(1, 400))


class AdmissionMachine(RuleBasedStateMachine):
    """Admits, settles, cancels and lets time pass over three quotas; after each step Redis must hold what we hold."""

    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        version, source = library_source()
        self.redis.function_load(source, replace=True)
        self.version = version
        self.queue = RequestQueue.__new__(RequestQueue)
        self.quotas: list[ModelQuota] = []
        self.open: dict[str, Open] = {}
        self.call("enlist", [redis_keys.incarnations_key()], [WORKER, 10**9])
        self.began = time.monotonic()

    def call(self, name: str, keys: Any, args: Any) -> Any:
        return self.redis.fcall(f"{name}_{self.version}", len(keys), *keys, *args)

    @initialize(limits=st.lists(st.tuples(LIMIT, LIMIT, LIMIT, LIMIT), min_size=3, max_size=3))
    def configure(self, limits: list[tuple[int, int, int, int]]) -> None:
        self.quotas = [
            ModelQuota(quota(f"q{i}", rpm_limit=r, tpm_limit=t, token_budget=b, max_budget_micros=m))
            for i, (r, t, b, m) in enumerate(limits)
        ]

    @rule(prompt=st.integers(0, 60), most=st.integers(1, 60), which=st.sets(st.integers(0, 2)))
    def admit(self, prompt: int, most: int, which: set[int]) -> None:
        members = [self.quotas[i] for i in sorted(which)]
        tokens, micros = prompt + most, prompt * 2 + most * 3
        request = GenerateRequest(new_stream_id(), "t", "m", SamplingParams(max_tokens=most), "salt")
        terms = AdmissionTerms(prompt, most, PRICES, Payer(), tuple(one.terms for one in members))
        call = self.queue.admit_call(request, queue_limit=10**6, queue_timeout_seconds=60, terms=terms)
        before = self.dump()
        answer = RequestQueue.parse_admission(self.call(*call))
        passed = answer.verdict is Verdict.QUEUED
        surely = all(one.fits(tokens, micros, slack=0) for one in members)
        # What may have refilled without the model's knowing: all the time that this run has taken.
        real_seconds = time.monotonic() - self.began + 0.1
        perhaps = all(one.fits(tokens, micros, slack=real_seconds) for one in members)
        assert surely <= passed <= perhaps
        if not passed:
            assert self.dump() == before
            return
        for one in members:
            one.rpm, one.tpm = one.rpm - 1, one.tpm - tokens
            one.tokens, one.micros = one.tokens + tokens, one.micros + micros
        self.open[request.stream_id] = Open(tokens, micros, prompt, most, members)
        self.agree()

    @rule(pick=st.integers(0, 1000), share=st.floats(0, 1))
    def settle(self, pick: int, share: float) -> None:
        if not self.open:
            return
        # By number, in order of admission: ids are drawn anew in every run.
        stream_id = list(self.open)[pick % len(self.open)]
        one = self.open.pop(stream_id)
        ran = share > 0.1
        prompt, completion = (one.prompt, round(one.most * share)) if ran else (0, 0)
        # Owned by whoever cancels it: the way of streams that nobody served.
        keys = [redis_keys.stream_key(stream_id), redis_keys.queue_prefix(), redis_keys.control_prefix()]
        keys += [redis_keys.assigned_key(WORKER), redis_keys.suspended_key(), redis_keys.stream_prefix()]
        _, epoch = self.call("cancel", keys, [stream_id, "t", "test", WORKER, b""])
        keys = [redis_keys.stream_key(stream_id), redis_keys.assigned_key(WORKER)]
        keys += [redis_keys.usage_key(), redis_keys.soft_limits_key()]
        keys += [redis_keys.queue_prefix(), redis_keys.stream_prefix()]
        args = [stream_id, epoch, "finished", 1000, "stop", prompt, 0, completion]
        assert self.call("settle", keys, args) == 1
        assert self.call("settle", keys, args) == 0
        for member in one.members:
            used, cost = prompt + completion, prompt * 2 + completion * 3
            if member.terms.tpm_limit != NO_LIMIT:
                member.tpm = min(member.terms.tpm_limit, member.tpm + one.tokens - used)
            member.tokens += used - one.tokens
            member.micros += cost - one.micros
        self.agree()

    @rule(seconds=st.integers(1, 90))
    def pass_time(self, seconds: int) -> None:
        for one in self.quotas:
            key = redis_keys.bucket_key(one.terms.id)
            for name in ("rpm_ms", "tpm_ms"):
                if self.redis.hexists(key, name):
                    self.redis.hincrby(key, name, -seconds * 1000)
            one.pass_time(seconds)

    def agree(self) -> None:
        for one in self.quotas:
            row: Any = self.redis.hmget(redis_keys.budget_key(one.terms.id, "p"), ["tokens", "micros"])
            if row[0] is not None:
                assert (int(row[0]), int(row[1])) == (one.tokens, one.micros)

    def dump(self) -> dict[bytes, Any]:
        keys: Any = self.redis.keys("*")
        return {key: self.redis.dump(key) for key in keys}


@pytest.fixture
def plain_redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as redis:
        yield redis


def test_admission_agrees_with_the_model(plain_redis: Redis) -> None:
    machine = type("Machine", (AdmissionMachine,), {"redis": plain_redis})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_terms_are_the_arrays_that_lua_reads() -> None:
    terms = AdmissionTerms(1, 2, PRICES, Payer("k", "u", "d"), (quota(rpm_limit=3),))
    assert codec.encode(terms)[0] == 0x97, "an array of seven"
