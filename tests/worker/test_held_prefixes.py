"""What a worker's account of its prefix cache says to the index."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from headrace_wire import redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.codec import pack_token_ids
from headrace_wire.functions import Reply
from headrace_wire.messages import ChatTurn, GenerateRequest, SamplingParams
from headrace_wire.prefix_hashes import BLOCK_TOKENS, conversation_text, prefix_hashes, text_hashes
from headrace_wire.prefix_index import PrefixIndex
from headrace_worker.held_prefixes import HeldPrefixes
from headrace_worker.prefix_metrics import PrefixMetrics
from tests.worker.desk import WAIT_SECONDS, Desk

ME, OTHER = "worker-me", "worker-other"
IDS = list(range(100, 740))


def hashes(ids: list[int], salt: str = "salt") -> set[bytes]:
    return set(prefix_hashes(salt, "m", ids))


def request(ids: list[int], stream_id: str = "strm-1") -> GenerateRequest:
    return GenerateRequest(stream_id, "t", "m", SamplingParams(max_tokens=8), "salt", pack_token_ids(ids))


def said(text: str) -> GenerateRequest:
    """Return a request whose worker makes the ids."""
    turns = (ChatTurn("user", text),)
    return GenerateRequest("strm-1", "t", "m", SamplingParams(max_tokens=8), "salt", conversation=turns)


def names(*requests: GenerateRequest) -> set[bytes]:
    """Return the hashes of what was said."""
    return {name for one in requests for name in text_hashes("salt", "m", conversation_text(one.conversation))}


class Account:
    """A worker's account that is being reported."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.held = HeldPrefixes(PrefixIndex(desk.functions), desk.log, PrefixMetrics(CollectorRegistry()))
        self.held.attach(100 * BLOCK_TOKENS)
        self.task: asyncio.Task[None] | None = None

    async def enlist(self, *names: str) -> None:
        for name in names:
            await self.desk.queue.enlist(name, lease_seconds=60, channels=[redis_keys.control_key(name)])
            await self.desk.queue.renew(name, lease_seconds=60, owned=[], channels=[], serving=("m", 8))

    async def begin(self, name: str = ME) -> None:
        await self.end()
        self.task = asyncio.create_task(self.held.report(name, deployment="m", lease_seconds=60))

    async def end(self) -> None:
        if self.task is not None:
            await cancel_and_wait(self.task)

    async def noted(self, name: str = ME) -> set[bytes]:
        members: Reply = await self.desk.redis.smembers(redis_keys.held_key(name))
        return set(members)

    async def until(self, found: Callable[[set[bytes]], bool], name: str = ME) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                if found(await self.noted(name)):
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def account(desk: Desk) -> AsyncIterator[Account]:
    account = Account(desk)
    yield account
    await account.end()


async def test_prompts_and_answers_are_told(account: Account) -> None:
    await account.enlist(ME, OTHER)
    await account.begin()
    account.held.computes(request(IDS))
    await account.until(lambda noted: noted == hashes(IDS))
    answer = list(range(40))
    await account.desk.redis.set(redis_keys.token_ids_key("strm-1"), pack_token_ids(answer))
    account.held.ended(request(IDS))
    whole = hashes([*IDS, *answer[:-1]])
    await account.until(lambda noted: noted == whole)
    assert len(whole) == 21


async def test_what_had_to_go_is_told_too(account: Account) -> None:
    await account.enlist(ME, OTHER)
    account.held.attach(30 * BLOCK_TOKENS)
    await account.begin()
    account.held.computed("salt", IDS)
    await account.until(lambda noted: noted == hashes(IDS))
    newer = [token + 1 for token in IDS]
    account.held.computed("salt", newer)
    beginning = set(prefix_hashes("salt", "m", IDS)[:10])
    await account.until(lambda noted: noted == hashes(newer) | beginning)


async def test_after_a_loss_everything_is_told_anew(account: Account) -> None:
    await account.enlist(ME, OTHER)
    await account.begin()
    account.held.computed("salt", IDS)
    await account.until(lambda noted: noted == hashes(IDS))
    await account.desk.redis.delete(redis_keys.held_key(ME))
    account.held.computed("salt", [7] * 64)
    await account.until(lambda noted: noted == hashes(IDS) | hashes([7] * 64))


async def test_a_new_incarnation_tells_everything(account: Account) -> None:
    await account.enlist(ME, OTHER, "worker-me-again")
    await account.begin()
    account.held.computed("salt", IDS)
    await account.until(lambda noted: noted == hashes(IDS))
    await account.begin("worker-me-again")
    await account.until(lambda noted: noted == hashes(IDS), "worker-me-again")


async def test_who_was_alone_tells_everything_when_another_comes(account: Account) -> None:
    await account.enlist(ME)
    await account.begin()
    account.held.computed("salt", IDS)
    account.held.computed("salt", [7] * 64)
    await account.enlist(OTHER)
    account.held.computed("salt", [8] * 64)
    await account.until(lambda noted: noted == hashes(IDS) | hashes([7] * 64) | hashes([8] * 64))


async def test_a_new_engine_holds_nothing(account: Account) -> None:
    await account.enlist(ME, OTHER)
    await account.begin()
    account.held.computed("salt", IDS)
    await account.until(lambda noted: noted == hashes(IDS))
    account.held.attach(100 * BLOCK_TOKENS)
    await account.until(lambda noted: not noted)
    account.held.attach(0)
    account.held.computed("salt", IDS)
    assert await account.noted() == set(), "it has no prefix cache"


async def test_conversations_are_told_by_their_text(account: Account) -> None:
    await account.enlist(ME, OTHER)
    await account.begin()
    account.held.computes(said("tides " * 100))
    await account.until(lambda noted: noted == names(said("tides " * 100)))
    account.held.ended(said("tides " * 100))
    account.held.computes(said("Too short."))
    account.held.computed("salt", IDS)
    await account.until(lambda noted: noted == names(said("tides " * 100)) | hashes(IDS))


async def test_pinned_prompt_caches_are_told_by_their_text_from_the_first_conversation_on(account: Account) -> None:
    """Where gateways make the ids it would only take their place in the account."""
    await account.enlist(ME, OTHER)
    await account.begin()
    pinned, other = said("tides " * 100), said("mills " * 100)
    account.held.pinned("salt", pinned.conversation)
    account.held.computes(request(IDS))
    await account.until(lambda noted: noted == hashes(IDS))
    account.held.computes(other)
    await account.until(lambda noted: noted == hashes(IDS) | names(pinned, other))


async def test_pinned_prompt_caches_are_told_by_their_text_where_no_gateway_can_make_ids(account: Account) -> None:
    await account.enlist(ME, OTHER)
    await account.begin()
    account.held.attach(100 * BLOCK_TOKENS, goes_by_text=True)
    pinned = said("tides " * 100)
    account.held.pinned("salt", pinned.conversation)
    await account.until(lambda noted: noted == names(pinned))
