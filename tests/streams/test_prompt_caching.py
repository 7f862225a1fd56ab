"""Prompt caches at the gateway: by name, by what a conversation says, and never another tenant's."""

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.services import StreamOptions, stream_start
from headrace_wire.cache_salt import cache_salt
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import ChatTurn, GenerateRequest, PromptCacheUse, SamplingParams
from headrace_wire.prompt_caches import PromptCacheConfig
from tests.streams.conftest import WORKER
from tests.support.snapshots import TENANT_A, TENANT_B, publish_snapshot, snapshot

SYSTEM = ChatTurn("system", "You know the tides.")
EXAMPLE = (ChatTurn("user", "Brest?"), ChatTurn("assistant", "At noon."))
QUESTION = ChatTurn("user", "And Dover?")


def config(cache_id: str, tenant_id: str, name: str, *messages: ChatTurn, deployment: str = "sim") -> PromptCacheConfig:
    return PromptCacheConfig(
        id=cache_id,
        tenant_id=tenant_id,
        deployment=deployment,
        name=name,
        version=1,
        messages=messages,
        tokens=64 * len(messages),
        cache_salt=cache_salt(b"test", tenant_id),
    )


@pytest.fixture
async def caching_gateway(gateway: Gateway, redis_url: str) -> Gateway:
    caches = [
        config("a-short", TENANT_A, "short", SYSTEM),
        config("a-long", TENANT_A, "long", SYSTEM, *EXAMPLE),
        config("a-slow", TENANT_A, "elsewhere", SYSTEM, deployment="slow"),
        config("b-own", TENANT_B, "theirs", SYSTEM, *EXAMPLE, QUESTION),
    ]
    async with Redis.from_url(redis_url) as redis:
        await publish_snapshot(redis, replace(snapshot(2), prompt_caches=caches))
    await gateway.config_reader.refresh()
    return gateway


async def requested(gateway: Gateway, *conversation: ChatTurn, name: str | None = None) -> GenerateRequest:
    """Start a stream of tenant A, and return what its worker gets."""
    caller = Caller(gateway.config.tenants[TENANT_A])
    started = await stream_start(
        gateway=gateway,
        caller=caller,
        deployment=gateway.config.deployment(caller, "sim"),
        conversation=conversation,
        sampling=SamplingParams(max_tokens=4),
        options=StreamOptions(prompt_cache=name),
    )
    started.subscription.close()
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    return claimed.request


async def test_a_named_one_goes_before_the_conversation(caching_gateway: Gateway) -> None:
    request = await requested(caching_gateway, QUESTION, name="long")
    assert request.conversation == (SYSTEM, *EXAMPLE, QUESTION)
    assert request.prompt_cache == PromptCacheUse("a-long", 192)
    assert request.cache_salt == cache_salt(b"test", TENANT_A)


async def test_the_longest_that_a_conversation_begins_with_is_found(caching_gateway: Gateway) -> None:
    long = await requested(caching_gateway, SYSTEM, *EXAMPLE, QUESTION)
    short = await requested(caching_gateway, SYSTEM, QUESTION)
    none = await requested(caching_gateway, QUESTION)
    assert long.conversation == (SYSTEM, *EXAMPLE, QUESTION)
    assert [use and use.cache_id for use in (long.prompt_cache, short.prompt_cache, none.prompt_cache)] == [
        "a-long",
        "a-short",
        None,
    ]


async def test_those_of_others_are_as_unknown_as_those_that_do_not_exist(caching_gateway: Gateway) -> None:
    said = []
    for name in ("theirs", "missing", "elsewhere"):
        with pytest.raises(InvalidRequestError) as refused:
            await requested(caching_gateway, QUESTION, name=name)
        assert refused.value.param == "prompt_cache"
        said.append(str(refused.value).replace(name, "NAME"))
    assert len(set(said)) == 1
