"""One gateway process: its connections, its lease, and the tasks that keep its views fresh."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

import structlog
from redis.exceptions import RedisError

from apps.streams import metrics
from apps.streams.adoption import Adoption
from apps.streams.affinity import PREFER_SECONDS, Affinity
from apps.streams.breakers import Breakers
from apps.streams.config_view import Caller, ConfigReader, ConfigView
from apps.streams.connections import ConnectionLimit
from apps.streams.credit_book import CreditBook
from apps.streams.delivery import Delivery
from apps.streams.detachment import Departure, Detachment
from apps.streams.drafts import DraftBook
from apps.streams.endings import Endings
from apps.streams.fleet_view import FleetView
from apps.streams.latency_book import LatencyBook
from apps.streams.likenesses import BUDGET_SECONDS, Likenesses
from apps.streams.limits import QueueNews, StreamLimit
from apps.streams.presence import Presence
from apps.streams.rendering import Renderers
from apps.streams.response_recorder import ResponseRecorder
from apps.streams.subscription import Subscription
from apps.streams.traces import traces_begin
from apps.streams.unread_ends import UnreadEnds
from apps.streams.waiting_room import Waiting, WaitingRoom
from headrace_guard.policy_store import PolicyStore
from headrace_wire import redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.draft_budget import DraftBudget
from headrace_wire.errors import InvalidApiKeyError
from headrace_wire.flights import Flights, Left
from headrace_wire.ids import GATEWAY_KIND, new_incarnation
from headrace_wire.intervention_log import InterventionLog
from headrace_wire.kept_answers import KeptAnswers
from headrace_wire.left_behind import LeftBehind
from headrace_wire.linked_functions import LinkedFunctions
from headrace_wire.policy_bodies import policy_bodies
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import CancelOutcome, LeaseLostError, Place, RequestQueue
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
"""Between two renewals, and two looks at the leases of others; a quarter of a shorter lease."""

MOST_READERS_TOLD = 256
"""Streams whose readers are counted in each renewal: operators look at some, and Redis keeps all. Of more, the rest
count as read by one."""


class Gateway:
    """The runtime that HTTP, WebSocket and chat edges share. One per process and event loop.

    A lost lease (the process was frozen, or Redis was away for longer) ends this incarnation: the gateway takes a new
    name, attaches its live subscriptions to it, and they go on from their logs.
    """

    def __init__(
        self,
        *,
        redis_url: str,
        secret_key: str,
        lease_seconds: float = 5.0,
        limit: StreamLimit | None = None,
        connections: ConnectionLimit | None = None,
        prefer_seconds: float = PREFER_SECONDS,
        semantic_seconds: float = BUDGET_SECONDS,
        is_traced: bool = False,
    ) -> None:
        self.secret = secret_key.encode()
        self.lease_seconds = lease_seconds
        self.redis = connect(redis_url)
        self.functions = LinkedFunctions(self.redis, redis_url)
        self.token_log = TokenLog(self.redis, self.functions)
        self.queue = RequestQueue(self.redis, self.functions)
        self.kept_answers = KeptAnswers(self.redis, self.functions)
        self.likenesses = Likenesses(self.kept_answers, budget_seconds=semantic_seconds)
        self.flights = Flights(self.redis, self.functions)
        self.recorder = ResponseRecorder(
            self.kept_answers, self.token_log, has_tenant=lambda tenant_id: tenant_id in self.config.tenants
        )
        self.renderers = Renderers(self.redis)
        self.fleet = FleetView(self.redis, self.renderers)
        self.config_reader = ConfigReader(self.redis, on_change=lambda _: self._reconfigured())
        self.limit = limit or StreamLimit()
        self.waiting_room = WaitingRoom(self.queue)
        self.affinity = Affinity(self.queue, self.fleet, self.waiting_room, seconds=prefer_seconds)
        self.connections = connections or ConnectionLimit()
        self.policies = PolicyStore(policy_bodies(self.redis))
        self.interventions = InterventionLog(self.redis)
        self.drafts = DraftBook()
        self.draft_budget = DraftBudget(self.redis, self.functions)
        self.credit = CreditBook(self.queue)
        self.breakers = Breakers(self.functions, self.fleet)
        self.delivery = Delivery(redis_url, self.token_log, self.limit, on_connect=self.credit.grant_again)
        self.unread_ends = UnreadEnds(self.token_log, is_read=self.delivery.is_read, ended=self.breakers.ended)
        self.latencies = LatencyBook(self.functions, ended=self.unread_ends.ended)
        self.detachment = Detachment(self.token_log, self.credit, abort=self._abort)
        self._adoption = Adoption(
            LeftBehind(self.redis, self.functions),
            self.token_log,
            self.delivery,
            self.detachment,
            config=lambda: self.config,
            lease_seconds=lease_seconds,
        )
        self.buffered_bytes: Callable[[], int] = lambda: 0
        """What the server's transports hold in user space; set by whoever runs the server."""
        self.leave: Callable[[], None] = lambda: log.warning("gateway_cannot_leave")
        """Ends the process as SIGTERM does; set by whoever runs the server."""
        self.server_load: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Open connections, and those of them that are WebSockets; likewise."""
        self._presence = Presence(self.redis)
        self._keys_used: dict[str, float] = {}
        self.draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._cancelling: set[asyncio.Task[None]] = set()
        self._delivery_task: asyncio.Task[None] | None = None
        self._new_incarnation()
        self.traces = traces_begin(self.incarnation, is_on=is_traced)

    def _new_incarnation(self) -> None:
        self.incarnation = new_incarnation(GATEWAY_KIND)
        self.endings = Endings(self.token_log, self.queue, self.incarnation)

    @property
    def config(self) -> ConfigView:
        """The newest configuration seen."""
        return self.config_reader.view

    def authenticate(self, presented: str | None) -> Caller:
        """Return the caller whose key was presented, and note that the key was used.

        Raises:
            InvalidApiKeyError: no key, or none that is good.
        """
        caller = self.config.authenticate(presented)
        if caller.api_key is not None:
            self._keys_used[caller.api_key.public_id] = time.time()
        return caller

    def watch_place(
        self, subscription: Subscription, place: Place | None = None, *, deployment: str, may_be_left: bool = False
    ) -> QueueNews:
        """Have a reader of a queued stream told where it stands, until somebody takes it; returns what is known now.

        One that `may_be_left` to a preferred worker is offered to all when it still waits a moment later.
        """
        waking = partial(self.fleet.waking_seconds, deployment)
        subscription.waiting = Waiting(subscription.stream_id, subscription.nudge, waking)
        self.waiting_room.enter(subscription.waiting)
        if may_be_left:
            self.affinity.leave(subscription.waiting)
        return subscription.waiting.begin(place)

    @property
    def is_alone(self) -> bool:
        """Whether no other gateway is there."""
        return self._presence.is_alone

    @property
    def is_ready(self) -> bool:
        """Whether new streams are taken: configured, not draining, lease held."""
        return not self.draining and self.config.version > 0 and self._delivery_task is not None

    async def start(self) -> None:
        """Load functions, enlist, read configuration and fleet, then follow both.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        await self.functions.load()
        await self._enlist()
        await self._show()  # operators see it from its first stream on
        await self.config_reader.refresh()
        await self.fleet.refresh()
        await self.breakers.look(self.config.with_breaker)
        self._tasks = [
            asyncio.create_task(self.config_reader.run(), name="config"),
            asyncio.create_task(self.fleet.run(), name="fleet"),
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self.credit.run(), name="credit"),
            asyncio.create_task(self.affinity.run(), name="affinity"),
            asyncio.create_task(self.interventions.run(), name="interventions"),
            asyncio.create_task(self.recorder.run(), name="response recorder"),
            asyncio.create_task(self.latencies.run(), name="latencies"),
        ]
        log.info("gateway_started", incarnation=self.incarnation, config_version=self.config.version)

    async def stop(self) -> None:
        """End all tasks and connections. Streams go on in their workers; other gateways can resume them."""
        self._adoption.give_up()
        self._begin_unheard()
        await self.detachment.finish()
        await self.credit.flush()
        tasks = [*self._tasks, *self._cancelling, *([self._delivery_task] if self._delivery_task else [])]
        await cancel_and_wait(*tasks)
        self._tasks, self._delivery_task = [], None
        await self.latencies.finish()
        await self.likenesses.close()
        with suppress(RedisError):
            await self.redis.zadd(redis_keys.incarnations_key(), {self.incarnation: 1}, xx=True)
            await self._presence.bury([self.incarnation])
        await self.traces.close()
        await self.functions.aclose()
        await self.redis.aclose()

    async def _enlist(self) -> None:
        await self.queue.enlist(self.incarnation, lease_seconds=self.lease_seconds, channels=self._channels())
        self._delivery_task = asyncio.create_task(self.delivery.run(self.incarnation), name="delivery")

    def _channels(self) -> list[str]:
        return [redis_keys.delivery_key(self.incarnation), redis_keys.control_key(self.incarnation)]

    async def _abort(self, departure: Departure) -> None:
        """Stop a stream that was left for good; its end is in the log for whoever comes later."""
        stream_id = departure.stream_id
        while seconds := await self.flights.abandon(stream_id):
            # Whoever comes decides when it leaves in its turn. If nobody does, its gateway has died, say.
            if await self.detachment.ends_within(seconds) or await self.token_log.is_read(stream_id):
                return
        if await self.token_log.is_read(stream_id):
            await self.flights.take_up(stream_id)
            return
        await self._cancel(stream_id, departure.tenant_id, reason="client_disconnected")

    async def _cancel(self, stream_id: str, tenant_id: str, *, reason: str) -> None:
        outcome, epoch = await self.queue.cancel(
            stream_id, tenant_id=tenant_id, reason=reason, incarnation=self.incarnation
        )
        if outcome is CancelOutcome.QUEUED:
            await self.endings.cancelled(stream_id, epoch=epoch)

    def _reconfigured(self) -> None:
        self._end_revoked()
        if self.config.compares_questions:
            self.likenesses.warm()

    def _end_revoked(self) -> None:
        """End the reading of callers whose key or tenant has ended, and the streams that they started here."""
        config, admitted = self.config, set[tuple[str, str]]()
        for subscription in self.delivery.subscriptions():
            caller = subscription.caller
            if caller is None:
                continue
            who = caller.tenant.id, caller.api_key.public_id if caller.api_key is not None else ""
            if who in admitted:
                continue
            try:
                config.renewed(caller)
                admitted.add(who)
            except InvalidApiKeyError as error:
                subscription.caller = None  # told once
                subscription.interrupt(error)
                if subscription.had_turn:
                    self._cancel_revoked(subscription.stream_id, caller.tenant.id)
        self.drafts.keep_only(self.config.tenants)

    def _cancel_revoked(self, stream_id: str, tenant_id: str) -> None:
        log.info("access_ended", stream_id=stream_id, tenant_id=tenant_id)
        task = asyncio.create_task(self._end_access(stream_id, tenant_id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelled)

    async def _end_access(self, stream_id: str, tenant_id: str) -> None:
        tenant = self.config.tenants.get(tenant_id)
        if tenant is not None and tenant.active:
            left = await self.flights.leave(stream_id, tenant_id=tenant_id)
            if isinstance(left, Left) and not left.is_last:
                return  # other keys of the tenant have asked for the same
        await self._cancel(stream_id, tenant_id, reason="access_revoked")

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        self._cancelling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its reader is gone all the same, and the detached policy goes for what nobody reads.
            log.warning("cancel_failed", error=str(error))

    async def _tick(self) -> None:
        steps = (
            *(self._tidy, self._renew, self._show, self._reap, self._look_after, self.waiting_room.look),
            *(self._report, self._look_at_breakers),
        )
        while True:
            await asyncio.sleep(min(TICK_SECONDS, self.lease_seconds / 4))
            for step in steps:
                try:
                    await step()
                except RedisError as error:
                    log.warning("tick_failed", error=str(error))
                    break
                except Exception:  # say, of what another release wrote: the lease is to be renewed all the same
                    log.exception("tick_failed", step=step.__name__)

    async def _tidy(self) -> None:
        self._end_revoked()  # keys expire without anybody's doing
        self.drafts.sweep()
        await self.drafts.settle(self.draft_budget)

    async def _look_after(self) -> None:
        self._begin_unheard()
        await self._adoption.look()

    async def _look_at_breakers(self) -> None:
        await self.unread_ends.look()
        await self.breakers.look(self.config.with_breaker)

    async def _report(self) -> None:
        await self._report_keys()
        metrics.STREAMS_WAITING.set(self.limit.waiting)
        metrics.TRANSPORT_BUFFERED.set(self.buffered_bytes())

    async def _report_keys(self) -> None:
        """Hand the times of last use to Celery, which writes them to the database."""
        used, self._keys_used = self._keys_used, {}
        if used:
            await self.redis.hset(redis_keys.keys_used_key(), mapping={key: int(at) for key, at in used.items()})

    async def _renew(self) -> None:
        channels = self._channels()
        try:
            await self.queue.renew(self.incarnation, lease_seconds=self.lease_seconds, owned=[], channels=channels)
        except LeaseLostError:
            await self._start_anew()

    def _begin_unheard(self) -> None:
        """Let nobody's streams go their way: whoever asked for them did not hear that they were admitted."""
        for departure in self.detachment.take_unheard():
            if not self.delivery.is_read(departure.stream_id):  # it was asked for again, under the caller's key
                self.detachment.departed(departure, gateway=self.incarnation)

    async def _show(self) -> None:
        """Say how this gateway does, and do what the fleet's operators want of it."""
        connections, websockets = self.server_load()
        if await self._presence.show(
            self.incarnation,
            is_draining=self.draining,
            streams=len(self.delivery),
            connections=connections,
            websockets=websockets,
            readers=dict(islice(self._reader_counts(), MOST_READERS_TOLD)),
        ):
            self.leave()

    def _reader_counts(self) -> Iterator[tuple[str, int]]:
        """Yield the streams that are attached here and not read by one alone: nearly all are."""
        yield from self.delivery.crowds()
        yield from ((stream_id, 0) for stream_id in self.detachment.stream_ids())

    async def _start_anew(self) -> None:
        log.warning("gateway_lease_lost", incarnation=self.incarnation)
        if self._delivery_task is not None:
            await cancel_and_wait(self._delivery_task)
        self._new_incarnation()
        await self._enlist()
        await self.token_log.attach_all(self.delivery.stream_ids(), self.incarnation)
        self.delivery.distrust_all()

    async def _reap(self) -> None:
        reaped = await self.queue.reap(self.incarnation)
        if reaped.dead:
            log.warning("incarnations_expired", incarnations=reaped.dead, streams=len(reaped.taken))
        await self._presence.bury(reaped.dead)
        for stream in reaped.taken:
            await self.endings.left_behind(stream)
        for stream_id in reaped.settled:
            await self.endings.tell_again(stream_id)
