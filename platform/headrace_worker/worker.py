"""One worker process: config, startup, run, drain, shutdown."""

import asyncio
import logging
import os
import socket
import time

from headrace_guard.judges.pool import JudgePool
from headrace_wire.bell import Bell
from headrace_wire.draining import RESTART_STATUS
from headrace_wire.engine_options import options_fingerprint
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.linked_functions import LinkedFunctions
from headrace_wire.messages import Drain
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import LeaseLostError, RequestQueue
from headrace_wire.token_log import TokenLog
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.config import WorkerConfig
from headrace_worker.deployment_judge import DeploymentJudge
from headrace_worker.deployment_watch import DeploymentWatch
from headrace_worker.draining import Draining
from headrace_worker.engine_host import EngineFactory, EngineHost
from headrace_worker.guarding import Guarding
from headrace_worker.intake import Intake
from headrace_worker.lease import Lease
from headrace_worker.lives import Lives
from headrace_worker.machine_use import MachineUse
from headrace_worker.memory_usage import memory_usage
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.orders import Orders
from headrace_worker.prefill_reporting import PrefillReports
from headrace_worker.prefilling import Prefilling
from headrace_worker.preload_turn import PreloadTurn
from headrace_worker.resting import Rest
from headrace_worker.streams import Streams

log = logging.getLogger(__name__)


class Worker:
    """Wires the parts together and runs them as one task group."""

    def __init__(self, config: WorkerConfig, create: EngineFactory, metrics: WorkerMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._redis = connect(config.redis_url)
        self._control = connect(config.redis_url)
        self._bell = Bell(config.redis_url)
        self._snapshots = connect(config.redis_url)
        self._functions = functions = LinkedFunctions(self._redis, config.redis_url)
        queue = RequestQueue(self._redis, functions)
        self._asking = DeploymentJudge(self._redis, functions, lambda: self._lease.incarnation)
        self._judges = JudgePool(self._asking)
        self._adapters = AdapterShelf(config.adapter_dir, changed=lambda: self._lease.announce())  # noqa: PLW0108  there is no lease yet
        self._streams = Streams(
            config.redis_url,
            functions,
            TokenLog(self._redis, functions),
            queue,
            self._metrics,
            limits=config.hold_limits,
            healing=config.healing,
            guarding=Guarding(self._redis, self._judges, metrics.guard),
            adapters=self._adapters,
            checkpoints=config.checkpoints,
        )
        self._prefilling = Prefilling(
            metrics.prefills,
            is_quiet=lambda: self._streams.places.is_quiet,
            report=PrefillReports(self._redis, lambda: self._lease.incarnation).store,
            computed=self._streams.held_prefixes.computed,
        )
        self._watch = DeploymentWatch(self._snapshots, config.deployment)
        self._rest = Rest(queue, self._watch)
        self._lease = Lease(self._redis, queue, self._streams, config, self._describe)
        self._lives = Lives(self._redis, config.deployment, window_seconds=config.healing.quarantine_seconds)
        self._host = EngineHost(
            self._watch,
            self._streams,
            self._prefilling,
            self._adapters,
            self._rest,
            self._lives,
            self._redis,
            config,
            turn=PreloadTurn(self._redis, queue, self._watch, socket.gethostname()),
            metrics=self._metrics,
            create=create,
            changed=self._lease.announce,
        )
        self._draining = Draining(
            self._streams, announce=self._lease.announce, wake=lambda: queue.wake(self._lease.incarnation)
        )
        self._intake = Intake(
            queue,
            self._bell,
            self._control,
            self._streams,
            Orders(self._streams, self._prefilling, self, warm_up=self._host.want_warm_up),
            prefilling=self._prefilling,
            deployment=config.deployment,
        )
        self._machine = MachineUse()
        self._started_at = time.time()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> None:
        """Serve until `stop`, then drain."""
        log.info("worker for deployment %r, pid %d", self._config.deployment, os.getpid())
        try:
            async with asyncio.TaskGroup() as parts:
                tasks = [
                    parts.create_task(self._watch.run(), name="configuration"),
                    parts.create_task(self._streams.run(), name="streams"),
                    parts.create_task(self._host.run(), name="engine"),
                    parts.create_task(self._draining.run(), name="drain"),
                    parts.create_task(self._machine.run(), name="machine"),
                    parts.create_task(self._serve(), name="incarnations"),
                ]
                await self._drained()
                for task in tasks:
                    task.cancel()
            await self._lives.end()
        finally:
            await self._shutdown()

    def stop(self) -> None:
        """Begin the drain; called again, end it."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    @property
    def exit_status(self) -> int:
        """What its supervisor is to know of its end."""
        order = self._draining.order
        return RESTART_STATUS if order is not None and order.leave and order.is_restart else 0

    def drain(self, order: Drain) -> None:
        """Do as the fleet says; its end once begun is not called back."""
        if self._stop.is_set():
            return
        self._draining.begin(order)
        if order.leave:
            self._stop.set()

    def resume(self) -> None:
        """Take streams again after a drain that was not to end it; have an engine again that sleeps or is given up."""
        if not self._stop.is_set():
            self._rest.wake()
            self._draining.resume()
            self._streams.health.release()

    # ---- run

    async def _serve(self) -> None:
        """Live one incarnation after the other."""
        while True:
            await self._lease.enlist()
            incarnation = self._lease.incarnation
            if self._config.healing.quarantine_after:
                self._streams.health.recall(await self._lives.note(incarnation))
            else:
                self._streams.health.recall(0)
            try:
                async with asyncio.TaskGroup() as parts:
                    parts.create_task(self._lease.keep(), name="lease")
                    parts.create_task(self._intake.listen(incarnation), name="control")
                    report = self._streams.held_prefixes.report(
                        incarnation,
                        deployment=self._config.deployment,
                        lease_seconds=self._config.lease_seconds,
                    )
                    parts.create_task(report, name="prefixes")
                    claims = parts.create_task(self._intake.claim(incarnation), name="claims")
                    await self._stop.wait()
                    claims.cancel()
            except* LeaseLostError:
                log.warning("lease lost, starting anew; streams dropped: %d", len(self._streams))
                self._streams.abandon_all()

    def _describe(self, incarnation: str) -> WorkerInfo:
        host, deployment, info, order = self._host, self._host.deployment, self._host.info, self._draining.order
        return WorkerInfo(
            incarnation,
            self._config.deployment,
            deployment.engine.value if deployment else "",
            WorkerState.DRAINING if order is not None else host.state,
            socket.gethostname(),
            os.getpid(),
            self._started_at,
            model=deployment.model if deployment else "",
            fingerprint=info.assets.fingerprint if info else "",
            max_model_len=info.max_model_len if info else 0,
            max_num_seqs=host.max_num_seqs,
            cache_tokens=info.cache_tokens if info else 0,
            memory_usage=memory_usage(),
            options=options_fingerprint(deployment) if deployment else "",
            adapters=self._adapters.reports,
            num_requests_running=host.stats.num_requests_running,
            num_requests_waiting=host.stats.num_requests_waiting,
            num_requests_held=host.stats.num_requests_held,
            num_requests_spilled=host.stats.num_requests_spilled,
            kv_cache_usage=host.stats.kv_cache_usage,
            tokens_generated=self._metrics.tokens_generated,
            preemptions=self._metrics.preemptions,
            cold_start_seconds=host.cold_start_seconds,
            last_error=host.last_error,
            config_version=self._watch.version,
            num_streams=len(self._streams),
            batch=self._streams.batch.report,
            drain_reason=order.reason if order is not None else "",
            drain_until=self._draining.until if order is not None else 0.0,
            is_leaving=order is not None and order.leave,
            prompt_tokens=self._metrics.prefixes.prompt_tokens,
            cached_tokens=self._metrics.prefixes.cached_tokens,
            rss_bytes=self._machine.rss_bytes,
            gpu=self._machine.gpu,
            engine_failures=self._streams.health.engine_failures,
            quarantined_at=self._streams.health.quarantined_at,
        )

    # ---- drain and shutdown

    async def _drained(self) -> None:
        """Wait for the signal, or an order to leave, then until every stream has its end in the log."""
        await self._stop.wait()
        order = self._draining.order
        if order is None or not order.leave:
            order = Drain("the process was told to end", self._config.drain_seconds, leave=True)
            self._draining.begin(order)
        await self._draining.finish(order.deadline_seconds, self._stop_now)

    async def _shutdown(self) -> None:
        await self._lease.leave()
        await self._host.shutdown()
        await self._judges.close()
        await self._asking.close()
        self._bell.close()
        for client in (self._functions, self._redis, self._control, self._snapshots):
            await client.aclose()
        log.info("worker ended")
