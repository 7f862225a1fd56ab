"""A gateway, its configuration, its callers and a worker that the test plays, for tests of kept answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.services import (
    CacheControls,
    CacheWord,
    StartedStream,
    StreamOptions,
    stream_leave,
    stream_start,
)
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import GuardAttachment, GuardPolicy, encode_policy, policy_digest
from headrace_wire.messages import (
    ChatTurn,
    Delta,
    Ended,
    FinishReason,
    SamplingParams,
    Started,
    StreamError,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.request_queue import Claimed, Idempotency
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.token_log import Append
from headrace_wire.usage_events import UsageEvent, usage_event
from tests.support.processes import PATIENCE_SECONDS
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A, TENANT_B, publish_snapshot, snapshot

TEXT = "Water leads the wheel. 🌊"
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, seed=-1)
PATIENCE = PATIENCE_SECONDS


def caller(gateway: Gateway, *, of: str = TENANT_A, key: ApiKeyToken | None = None) -> Caller:
    return gateway.config.authenticate((key or (KEY_A if of == TENANT_A else KEY_B)).reveal())


class Desk:
    """The gateway's configuration, the callers and the worker."""

    def __init__(self, gateway: Gateway, worker: str) -> None:
        """`worker` is an enlisted one that only exists by name."""
        self.gateway = gateway
        self._worker = worker
        self.config = snapshot()
        self._to_be_kept = 0

    async def configure(self, **sections: Any) -> None:
        """Publish the configuration with these sections changed, and have the gateway read it."""
        self.config = msgspec.structs.replace(self.config, version=self.config.version + 1, **sections)
        await publish_snapshot(self.gateway.redis, self.config)
        await self.gateway.config_reader.refresh()

    async def keep(self, **terms: Any) -> None:
        """Switch the cache on, for both tenants."""
        policies = [ResponseCacheTerms(tenant_id=tenant, **terms) for tenant in (TENANT_A, TENANT_B)]
        await self.configure(response_caches=policies)

    async def ask(
        self,
        text: str = "What leads the wheel?",
        *,
        of: str = TENANT_A,
        sampling: SamplingParams = GREEDY,
        controls: CacheControls = CacheControls(),  # noqa: B008  # frozen
        can_return: bool = False,
        idempotency: Idempotency | None = None,
        deployment: str = "sim",
        stream_id: str | None = None,
        gateway: Gateway | None = None,
        key: ApiKeyToken | None = None,
        before: Sequence[ChatTurn] = (),
    ) -> StartedStream:
        gateway = gateway or self.gateway
        who = caller(gateway, of=of, key=key)
        return await stream_start(
            gateway=gateway,
            caller=who,
            deployment=gateway.config.deployment(who, deployment),
            conversation=[*before, ChatTurn("user", text)],
            sampling=sampling,
            options=StreamOptions(stream_id=stream_id, cache=controls, can_return=can_return, idempotency=idempotency),
        )

    async def claim(self) -> list[Claimed]:
        return await self.gateway.queue.claim(self._worker, deployment="sim", want=100)

    async def answer(
        self,
        claimed: Claimed,
        text: str = TEXT,
        *,
        state: StreamState = StreamState.FINISHED,
        finish: FinishReason = FinishReason.STOP,
    ) -> None:
        """Write the whole answer and its end, as a worker does."""
        await self.write(claimed, text)
        await self.end(claimed, state=state, finish=finish)

    async def write(self, claimed: Claimed, text: str = TEXT) -> None:
        await self.gateway.token_log.append(
            [
                Append(Started(claimed.stream_id, claimed.epoch, 0, self._worker, 1)),
                Append(Delta(claimed.stream_id, claimed.epoch, 5, 5, text), token_ids=[1, 2, 3, 4, 5]),
            ]
        )

    async def end(
        self,
        claimed: Claimed,
        *,
        state: StreamState = StreamState.FINISHED,
        finish: FinishReason = FinishReason.STOP,
        error: StreamError | None = None,
    ) -> None:
        gateway, usage = self.gateway, Usage(7, 5) if error is None else Usage()
        if state is StreamState.FINISHED:
            self._to_be_kept += await gateway.redis.hexists(redis_keys.stream_key(claimed.stream_id), "keep")
        timings = Timings(0, 0.5, 1.5)
        ended = Ended(claimed.stream_id, claimed.epoch, 6, state, finish, None, usage, timings, error)
        await gateway.token_log.append([Append(ended, log_ttl_seconds=3600)])
        await gateway.queue.settle(
            claimed.stream_id,
            epoch=claimed.epoch,
            incarnation=self._worker,
            state=state,
            log_ttl_seconds=3600,
            finish_reason=finish,
            usage=usage,
        )
        await gateway.token_log.publish([ended])

    async def fail(self, claimed: Claimed, *, code: str = "engine_error") -> None:
        """End a stream as a worker does that cannot go on."""
        error = StreamError(code, "The engine failed.")
        await self.end(claimed, state=StreamState.FAILED, finish=FinishReason.ERROR, error=error)

    async def claim_one(self) -> list[Claimed]:
        """Claim, waiting until there is something to claim."""
        async with asyncio.timeout(PATIENCE):
            while not (claimed := await self.claim()):
                pass
        return claimed

    async def computed(self, text: str = "What leads the wheel?", answer: str = TEXT, **options: Any) -> StartedStream:
        """Ask for something that is computed and kept."""
        started = await self.ask(text, **options)
        (claimed,) = await self.claim()
        await self.answer(claimed, answer)
        assert await self.read(started) == answer
        await self.recorded()
        return started

    async def recorded(self) -> None:
        """Wait until the gateway has looked at every finished stream."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await asyncio.sleep(0)
                if self.gateway.recorder.dealt_with >= self._to_be_kept:
                    return

    async def read(
        self, started: StartedStream, *, gateway: Gateway | None = None, key: ApiKeyToken | None = None
    ) -> str:
        """Return the whole text, and leave."""
        text = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    for entry in await started.subscription.next():
                        if isinstance(entry, Delta):
                            text += entry.text
                        elif isinstance(entry, Ended):
                            assert entry.error is None, entry.error.code
                            return text
        finally:
            self.leave(started, gateway=gateway, key=key)

    def leave(self, started: StartedStream, *, gateway: Gateway | None = None, key: ApiKeyToken | None = None) -> None:
        gateway = gateway or self.gateway
        who = caller(gateway, key=key)
        stream_leave(gateway=gateway, tenant=who.tenant, subscription=started.subscription, can_return=False)

    async def asked(self, *arguments: Any, **options: Any) -> CacheWord:
        """Return what the cache has to do with a request, which is then taken back."""
        started = await self.ask(*arguments, **options)
        if started.cache.word in (CacheWord.HIT, CacheWord.SEMANTIC):
            assert await self.read(started) == TEXT
        else:
            for claimed in await self.claim():
                await self.end(claimed, state=StreamState.CANCELLED, finish=FinishReason.ABORT)
            await self.read(started)
        return started.cache.word

    async def state_of(self, stream_id: str) -> str:
        record = await self.gateway.queue.record(stream_id)
        assert record is not None
        return record.state.value

    async def cancel_of(self, stream_id: str) -> bytes | None:
        """Return why a stream is to stop, if it is."""
        reason: Reply = await self.gateway.redis.hget(redis_keys.stream_key(stream_id), "cancel")
        return None if reason is None else bytes(reason)

    async def cancelled(self, stream_id: str) -> None:
        """Wait until a stream is to stop: its worker is told over its control channel."""
        channel, last = redis_keys.control_key(self._worker), "0-0"
        async with asyncio.timeout(PATIENCE):
            while await self.cancel_of(stream_id) is None:
                reply: Reply = await self.gateway.redis.xread({channel: last}, block=100)
                rows = reply[0][1] if reply else []
                last = rows[-1][0] if rows else last

    async def ledger(self) -> list[UsageEvent]:
        rows: Reply = await self.gateway.redis.xrange(redis_keys.usage_key())
        return [usage_event(fields) for _, fields in rows]


async def age(desk: Desk, seconds: float) -> None:
    """Have what is kept be so much older."""
    async for key in desk.gateway.redis.scan_iter(redis_keys.kept_answer_prefix(TENANT_A) + "*"):
        entry: Any = await desk.gateway.redis.get(key)
        created, _, rest = entry.partition(b":")
        await desk.gateway.redis.set(key, b"%d:%s" % (int(created) - int(seconds * 1000), rest), keepttl=True)


async def attached(gateway: Gateway, *policies: GuardPolicy) -> list[GuardAttachment]:
    """Publish guardrails as the database's side does; return what a configuration says of them."""
    attachments = []
    for policy in policies:
        body = encode_policy(policy)
        digest = policy_digest(body)
        await gateway.redis.set(redis_keys.guard_policy_key(digest), body)
        attachments.append(GuardAttachment(digest=digest, name=policy.name))
    return attachments
