"""Conversations on a real Redis: a gateway in the test's loop, and a worker that is the test itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from redis import Redis

from apps.accounts.models import User
from apps.accounts.services import user_create
from apps.chat import queue_deadline
from apps.deployments.models import ModelDeployment
from apps.streams.gateway import Gateway
from apps.streams.runtime import start_gateway, stop_gateway
from apps.tenants.models import Membership, Tenant
from apps.tenants.services import membership_create
from apps.tenants.snapshots import snapshot_publish
from headrace_wire import redis_keys
from headrace_wire.messages import Delta, Ended, FinishReason, Started, StreamError, StreamState, Timings, Usage
from headrace_wire.request_queue import Claimed
from headrace_wire.token_log import Append
from tests.support.processes import PATIENCE_SECONDS

WORKER = "worker-test"


@dataclass
class HandWorker:
    """Claims what the gateway admitted and writes its log, as a worker would."""

    gateway: Gateway
    deployment: str

    async def claim(self) -> Claimed:
        """Takes the one waiting stream."""
        (claimed,) = await self.gateway.queue.claim(WORKER, deployment=self.deployment, want=2)
        return claimed

    async def write(self, claimed: Claimed, texts: Sequence[str]) -> int:
        """Appends a token for each text; returns the last position."""
        epoch, stream_id = claimed.epoch, claimed.stream_id
        deltas = [Append(Delta(stream_id, epoch, seq, 1, text)) for seq, text in enumerate(texts, start=1)]
        await self.gateway.token_log.append([Append(Started(stream_id, epoch, 0, WORKER, 1)), *deltas])
        return len(texts)

    async def end(
        self,
        claimed: Claimed,
        seq: int,
        *,
        state: StreamState = StreamState.FINISHED,
        reason: FinishReason = FinishReason.STOP,
        error: StreamError | None = None,
    ) -> None:
        """Appends the terminal entry, settles and publishes."""
        ended = Ended(claimed.stream_id, claimed.epoch, seq + 1, state, reason, None, Usage(5, seq), Timings(), error)
        await self.gateway.token_log.append([Append(ended, log_ttl_seconds=3600)])
        await self.gateway.queue.settle(
            claimed.stream_id, epoch=claimed.epoch, incarnation=WORKER, state=state, log_ttl_seconds=3600
        )
        await self.gateway.token_log.publish([ended])


async def wait_for_end(gateway: Gateway, stream_id: str) -> None:
    """Reads a stream from its beginning, so that it may have ended long ago."""
    subscription = gateway.delivery.subscribe(stream_id, read_log=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(isinstance(entry, Ended) for entry in await subscription.next()):
            pass
    subscription.close()


@pytest.fixture
def other_membership(tenant: Tenant, membership: Membership) -> Membership:
    """Somebody else's place in the same tenant."""
    return membership_create(tenant=tenant, user=user_create(user=User(email="bob@example.com")))


@pytest.fixture
def foreign_membership(other_tenant: Tenant) -> Membership:
    """A member of another tenant."""
    return membership_create(tenant=other_tenant, user=user_create(user=User(email="eve@example.com")))


@pytest.fixture
def published(
    live_redis: Redis, transactional_db: None, membership: Membership, deployment: ModelDeployment
) -> Membership:
    """A member whose tenant and deployment stand in the configuration snapshot."""
    snapshot_publish()
    return membership


@pytest.fixture
async def gateway(published: Membership) -> AsyncIterator[Gateway]:
    """The process' gateway, and an enlisted worker that only exists by name."""
    gateway = await start_gateway()
    await gateway.queue.enlist(WORKER, lease_seconds=60, channels=[redis_keys.control_key(WORKER)])
    yield gateway
    await queue_deadline.queue_deadlines_forget()
    await stop_gateway()
    await sync_to_async(connections.close_all)()


@pytest.fixture
def worker(gateway: Gateway, deployment: ModelDeployment) -> HandWorker:
    return HandWorker(gateway, deployment.name)


@pytest.fixture
async def member_client(gateway: Gateway, published: Membership) -> AsyncClient:
    """A browser in which the member is signed in."""
    client = AsyncClient()
    await client.aforce_login(published.user)
    return client
