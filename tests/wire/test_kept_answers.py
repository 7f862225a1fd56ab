"""What is kept for a tenant stays within its room, on a real Redis."""

import random
from collections.abc import Sequence

import pytest

from headrace_wire import redis_keys
from headrace_wire.admission import AdmissionTerms
from headrace_wire.flights import KeepOrder
from headrace_wire.functions import Reply
from headrace_wire.kept_answers import MOST_BYTES, Kept, KeptAnswer, KeptAnswers, Recalled, pack_answer, unpack_answer
from headrace_wire.messages import FinishReason, Timings, Usage

from .conftest import Wire

ROOM = 4000
MOST_ALIKE = 256
"""`lua/_kept.lua`."""
LONG_KEPT = 3600


def answer(text: str) -> KeptAnswer:
    return KeptAnswer(text, 3, FinishReason.STOP, None, Usage(2, 3), Timings())


def incompressible(size: int) -> str:
    """Return a text that zstd cannot make much shorter."""
    return random.Random(size).randbytes(size // 2).hex()


class Cupboard:
    """Kept answers of one tenant."""

    def __init__(self, wire: Wire, tenant: str = "t") -> None:
        self.wire = wire
        self.tenant = tenant
        self.answers = KeptAnswers(wire.redis, wire.functions)

    async def keep(
        self,
        name: str,
        text: str,
        *,
        room: int = ROOM,
        ttl: int = LONG_KEPT,
        partition: str = "",
        likeness: bytes = b"",
    ) -> Kept:
        order = KeepOrder(name, ttl, room, partition, likeness)
        return await self.answers.keep(order, self.tenant, answer(text))

    async def alike(self, partition: str) -> set[str]:
        return set(await self.answers.alike(self.tenant, partition))

    async def partitions(self) -> Reply:
        return await self.wire.redis.hgetall(redis_keys.kept_partitions_key(self.tenant))

    async def recall(self, name: str) -> str | None:
        recalled = await self.answers.recall(
            member=name,
            stream_id="strm-1",
            tenant_id=self.tenant,
            deployment="m",
            most_age_seconds=60,
            terms=AdmissionTerms(0, 0),
            counts_tokens=False,
        )
        return recalled.answer.text if isinstance(recalled, Recalled) else None

    async def names(self) -> Sequence[str]:
        prefix = redis_keys.kept_answer_prefix(self.tenant)
        return sorted([key.decode().removeprefix(prefix) async for key in self.wire.redis.scan_iter(prefix + "*")])

    async def total(self) -> int:
        total: Reply = await self.wire.redis.hget(redis_keys.kept_answers_sizes_key(self.tenant), "total")
        return int(total or 0)


@pytest.fixture
def cupboard(wire: Wire) -> Cupboard:
    return Cupboard(wire)


@pytest.mark.parametrize("text", ["", "short", "long " * 1000, incompressible(3000)])
def test_an_answer_comes_back_as_it_was(text: str) -> None:
    kept = KeptAnswer(text, 7, FinishReason.STOP, "END", Usage(1, 7, 1), Timings(0, 1, 2))
    assert unpack_answer(pack_answer(kept)) == kept


def test_only_what_becomes_shorter_is_compressed() -> None:
    assert pack_answer(answer("wheel " * 20))[:1] == b"\0"
    assert len(pack_answer(answer("wheel " * 2000))) < 300


async def test_the_one_used_longest_ago_goes_first(cupboard: Cupboard) -> None:
    for name in ("d:one", "d:two", "d:three"):
        await cupboard.keep(name, incompressible(700))
    assert await cupboard.recall("d:one") is not None
    await cupboard.wire.redis.zadd(redis_keys.kept_answers_used_key("t"), {"d:two": 1, "d:three": 2})
    kept = await cupboard.keep("d:four", incompressible(700))
    assert (kept.is_stored, kept.evicted) == (True, 1)
    assert await cupboard.names() == ["d:four", "d:one", "d:three"]
    assert kept.bytes == await cupboard.total() <= ROOM


async def test_room_is_never_exceeded_and_comes_back(cupboard: Cupboard) -> None:
    for i in range(30):
        kept = await cupboard.keep(f"d:{i % 11}", incompressible(200 + 97 * (i % 7)))
        assert kept.bytes <= ROOM
    keys = [redis_keys.kept_answer_prefix("t") + name for name in await cupboard.names()]
    stored = sum([await cupboard.wire.redis.strlen(key) for key in keys])
    assert stored < await cupboard.total() <= ROOM
    await forget(cupboard, "")
    assert (await cupboard.names(), await cupboard.total()) == ([], 0)


async def test_the_same_answer_anew_takes_the_old_ones_place(cupboard: Cupboard) -> None:
    first = await cupboard.keep("d:one", "an answer")
    again = await cupboard.keep("d:one", "an answer")
    assert (again.bytes, again.evicted) == (first.bytes, 0)


async def test_what_is_larger_than_the_room_drives_nobody_out(cupboard: Cupboard) -> None:
    await cupboard.keep("d:one", "an answer")
    kept = await cupboard.keep("d:two", incompressible(ROOM * 3))
    assert not kept.is_stored
    assert await cupboard.names() == ["d:one"]
    assert not (await cupboard.keep("d:huge", incompressible(MOST_BYTES * 2), room=2**30)).is_stored


async def test_what_has_ended_gives_its_room_back(cupboard: Cupboard) -> None:
    await cupboard.keep("d:one", incompressible(700))
    await cupboard.wire.redis.zadd(redis_keys.kept_answers_ending_key("t"), {"d:one": 1})
    before = await cupboard.total()
    kept = await cupboard.keep("d:two", incompressible(700))
    assert kept.evicted == 0
    assert kept.bytes == pytest.approx(before, abs=50)


async def test_one_tenants_answers_are_no_others(wire: Wire, cupboard: Cupboard) -> None:
    other = Cupboard(wire, "u")
    await cupboard.keep("d:one", "mine")
    assert await other.recall("d:one") is None
    await forget(other, "")
    assert await cupboard.recall("d:one") == "mine"


async def test_a_deployments_answers_are_forgotten_alone(cupboard: Cupboard) -> None:
    for name in ("d:one", "d:two", "dd:one"):
        await cupboard.keep(name, "an answer")
    count, _, _ = await forget(cupboard, "d:")
    assert count == 2
    assert await cupboard.names() == ["dd:one"]


async def test_what_cannot_be_read_is_not_given(cupboard: Cupboard) -> None:
    await cupboard.wire.redis.set(redis_keys.kept_answer_prefix("t") + "d:one", "nonsense")
    assert await cupboard.recall("d:one") is None


# ---- questions, which others are compared with

QUESTION = b"q" * 800


async def test_a_question_goes_with_its_answer(cupboard: Cupboard) -> None:
    kept = await cupboard.keep("d:one", "an answer", partition="p", likeness=QUESTION)
    assert kept.bytes > len(QUESTION), "it takes room"
    assert await cupboard.answers.alike("t", "p") == {"d:one": QUESTION}
    assert await cupboard.answers.alike("u", "p") == {}, "another tenant's are none of its own"
    await cupboard.keep("d:one", "an answer", partition="other", likeness=QUESTION)
    assert await cupboard.alike("p") == set(), "the same answer anew is in one partition"
    assert await cupboard.alike("other") == {"d:one"}
    await cupboard.keep("d:one", "an answer")
    assert await cupboard.alike("other") == set()
    assert await cupboard.partitions() == {}


async def test_questions_go_where_room_is_needed_or_their_time_is_over_or_all_is_forgotten(cupboard: Cupboard) -> None:
    for name in ("d:one", "d:two"):
        await cupboard.keep(name, "an answer", partition="p", likeness=QUESTION)
    await cupboard.wire.redis.zadd(redis_keys.kept_answers_used_key("t"), {"d:one": 1})
    await cupboard.keep("d:three", "an answer", partition="p", likeness=QUESTION)
    assert await cupboard.alike("p") == {"d:two", "d:three"}
    await cupboard.wire.redis.zadd(redis_keys.kept_answers_ending_key("t"), {"d:two": 1})
    await cupboard.keep("dd:four", "an answer", partition="p", likeness=QUESTION)
    assert await cupboard.alike("p") == {"d:three", "dd:four"}
    await forget(cupboard, "d:")
    assert await cupboard.alike("p") == {"dd:four"}
    _, _, left = await forget(cupboard, "")
    assert (left, await cupboard.alike("p"), await cupboard.partitions()) == (0, set(), {})


async def test_a_full_partition_forgets_the_question_that_was_used_longest_ago_and_keeps_its_answer(
    cupboard: Cupboard,
) -> None:
    for number in range(MOST_ALIKE):
        await cupboard.keep(f"d:{number}", "an answer", room=2**30, partition="p", likeness=QUESTION)
    await cupboard.wire.redis.zadd(redis_keys.kept_answers_used_key("t"), {"d:7": 1})
    full = await cupboard.total()
    kept = await cupboard.keep("d:more", "an answer", room=2**30, partition="p", likeness=QUESTION)
    assert len(await cupboard.alike("p")) == MOST_ALIKE
    assert "d:7" not in await cupboard.alike("p")
    assert await cupboard.recall("d:7") == "an answer"
    assert kept.bytes == await cupboard.total() > full
    _, _, left = await forget(cupboard, "")
    assert left == 0, "all that was counted is given back"


async def forget(cupboard: Cupboard, prefix: str) -> list[int]:
    tenant = cupboard.tenant
    keys = redis_keys.kept_answers_keys(tenant)
    reply: Reply = await cupboard.wire.functions.call("forget", keys, [prefix])
    return [int(number) for number in reply]
