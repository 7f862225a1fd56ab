"""The life of the engine: start, warm up, feed the streams, and start again when it dies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.fleet import WorkerState
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.config import WorkerConfig
from headrace_worker.deployment_watch import DeploymentWatch
from headrace_worker.engine import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineOutput,
    EngineRefusedError,
    EngineStats,
)
from headrace_worker.healing import EngineEnd
from headrace_worker.lives import Lives
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.pinned_prefixes import WARM_SECONDS, PinnedPrefixes
from headrace_worker.places import spare_places
from headrace_worker.prefilling import Prefilling
from headrace_worker.preload_turn import PreloadTurn
from headrace_worker.registration import ASSETS_SECONDS, register
from headrace_worker.resting import LOOK_SECONDS, Rest, UnusedError
from headrace_worker.streams import Streams
from headrace_worker.warming import Warming

log = logging.getLogger(__name__)

WARM_UP_SECONDS = 300.0
EXERCISE_SECONDS = 30.0
ADAPTER_SECONDS = 120.0
STATS_SECONDS = 1.0

EngineFactory = Callable[[DeploymentConfig], Engine]


class EngineHost:
    """Keeps one engine alive for a deployment.

    What it says of itself (state, last error, ...) goes into `WorkerInfo`.
    """

    def __init__(  # noqa: PLR0913  what a worker is made of
        self,
        watch: DeploymentWatch,
        streams: Streams,
        prefilling: Prefilling,
        adapters: AdapterShelf,
        rest: Rest,
        lives: Lives,
        redis: "Redis",
        config: WorkerConfig,
        *,
        turn: PreloadTurn,
        metrics: WorkerMetrics,
        create: EngineFactory,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called with each new state."""
        self._watch = watch
        self._streams = streams
        self._prefilling = prefilling
        self._pinned = PinnedPrefixes(watch, prefilling, streams.held_prefixes, streams.stable_prefix)
        self._adapters = adapters
        self._rest = rest
        self._lives = lives
        self._turn = turn
        self._redis = redis
        self._config = config
        self._metrics = metrics
        self._create = create
        self._changed = changed
        self._failures = 0
        self._engine: Engine | None = None
        self.state = WorkerState.LOADING
        self.last_error = ""
        self.deployment: DeploymentConfig | None = None
        self.info: EngineInfo | None = None
        self.max_num_seqs = 0
        """What the engine runs at once, spare places apart."""
        self.stats = EngineStats()
        self.cold_start_seconds = 0.0
        self._warming = Warming()
        self._warm_up_wanted = asyncio.Event()
        self._warm_up_if_idle = 0.0

    async def run(self) -> None:
        """Keep an engine running until cancelled."""
        await self._streams.health.wait_recalled()
        while True:
            if self._streams.health.is_hopeless:
                self.deployment = self.deployment or await self._watch.wait()
                await self._wait_in_quarantine(self.deployment)
                continue
            await self._turn.wait()
            self.deployment = deployment = await self._watch.wait()
            self._streams.places.batch_max = deployment.batch_max
            self._streams.batch.configure(deployment)
            await self._run_once(deployment)

    async def shutdown(self) -> None:
        """End the engine. `run` must be cancelled."""
        if self._engine is not None:
            await self._engine.shutdown()
            self._engine = None

    # ---- one life

    async def _run_once(self, deployment: DeploymentConfig) -> None:
        self._enter(WorkerState.LOADING)
        self._streams.health.begin()
        slots = deployment.max_num_seqs
        self._engine = engine = self._create(replace(deployment, max_num_seqs=slots + spare_places(slots)))
        try:
            info = await self._start(engine, deployment)
            self._failures = 0
            self.max_num_seqs = info.max_num_seqs - spare_places(slots)
            self._streams.attach(engine, info, slots=self.max_num_seqs)
            self._enter(WorkerState.READY)
            await self._serve(engine, info)
        except EngineRefusedError as error:
            self._metrics.engine_started("refused")
            await self._stop(engine)
            await self._wait_as_broken(deployment, error)
        except EngineDeadError as error:
            self._note_end(error)
            await self._stop(engine)
            if not self._streams.health.is_hopeless:
                await self._back_off(deployment)
        except UnusedError:
            await self._sleep(engine, deployment)

    async def _stop(self, engine: Engine) -> None:
        """The engine is of no use any more: give its streams back at once, then end it."""
        self._streams.detach()
        self._adapters.detach()
        self._enter(WorkerState.LOADING)
        await engine.shutdown()
        self._engine = None

    async def _sleep(self, engine: Engine, deployment: DeploymentConfig) -> None:
        """End the engine, whose streams have been left to others, until somebody waits for it."""
        log.info("nobody has used the engine for %.0f s: it sleeps", deployment.sleep_after_seconds)
        self._adapters.detach()
        self._enter(WorkerState.SLEEPING)
        await engine.shutdown()
        self._engine, self.stats = None, EngineStats()
        self._metrics.asleep.set(1)
        await self._rest.until_wanted(deployment)
        self._metrics.asleep.set(0)
        self._metrics.wakes.inc()
        log.info("waking up")

    async def _start(self, engine: Engine, deployment: DeploymentConfig) -> EngineInfo:
        began = time.monotonic()
        log.info("starting engine=%s model=%s", deployment.engine.value, deployment.model)
        try:
            info = await engine.start(self._deliver)
            self._adapters.attach(engine, info)
            # Before pinned prompt caches are computed: they are in the account, too.
            self._streams.held_prefixes.attach(info.cache_tokens, goes_by_text=not info.assets.may_suffice)
            await self._warm_up(engine, info)
        except EngineDeadError:
            self._metrics.engine_started("failed")
            raise
        await self._register(info)  # before the fingerprint is seen anywhere
        self.info = info
        self.last_error = ""
        self.cold_start_seconds = time.monotonic() - began
        self._metrics.cold_start.set(self.cold_start_seconds)
        self._metrics.engine_started("ready")
        log.info("engine ready after %.1f s, model fingerprint %s", self.cold_start_seconds, info.assets.fingerprint)
        return info

    async def _warm_up(self, engine: Engine, info: EngineInfo) -> None:
        """Have seen a generation, and have done what first requests would wait for: that is what `ready` means."""
        if not await _in_its_life(engine, self._warming.generate(engine, info), seconds=WARM_UP_SECONDS):
            raise EngineDeadError("The engine started but generates nothing.")
        if not await _in_its_life(engine, self._warming.exercise(engine, info), seconds=EXERCISE_SECONDS):
            log.warning("the warm-up was not over after %.0f s", EXERCISE_SECONDS)
        if not await _in_its_life(engine, self._pinned.warm(engine, info), seconds=WARM_SECONDS):
            log.warning("not all prompt caches are warm after %.0f s", WARM_SECONDS)
        loading = self._adapters.load(self._watch.adapters)
        if not await _in_its_life(engine, loading, seconds=ADAPTER_SECONDS):
            log.warning("not all adapters are loaded after %.0f s", ADAPTER_SECONDS)

    async def _serve(self, engine: Engine, info: EngineInfo) -> None:
        """Feed the streams until the engine dies, or nobody uses it.

        Raises:
            EngineDeadError: it has died.
            UnusedError: nothing is in it, and no stream will be given to it any more.
        """
        deaths: tuple[BaseException, ...] = ()
        is_unused = False
        self._rest.used()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._await_death(engine), name="death")
                tasks.create_task(self._watch_stats(engine), name="stats")
                tasks.create_task(self._follow_limit(engine, info), name="limit")
                tasks.create_task(self._answer_warm_ups(engine, info), name="warm-ups")
                tasks.create_task(self._keep_registered(info), name="assets")
                tasks.create_task(self._follow_adapters(), name="adapters")
                tasks.create_task(self._pinned.keep(info), name="prompt caches")
                tasks.create_task(self._watch_use(), name="use")
                tasks.create_task(self._watch_health(engine, info), name="health")
                tasks.create_task(self._prefilling.run(engine, info), name="prefills")
        except* EngineDeadError as group:
            deaths = group.exceptions
        except* UnusedError:
            is_unused = True
        if is_unused and not deaths:
            raise UnusedError
        raise EngineDeadError(str(deaths[0]) if deaths else "the engine has ended")

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        self._streams.feed(outputs)
        self._prefilling.feed(outputs)
        self._warming.feed(outputs)

    async def _await_death(self, engine: Engine) -> None:
        raise EngineDeadError(await engine.wait_death())

    async def _watch_health(self, engine: Engine, info: EngineInfo) -> None:
        """Give up an engine that fails its streams, and an answer of our own too; another one is started.

        What it has goes to other workers. One that answers is well: the requests that failed were of that kind.
        """
        health = self._streams.health
        while True:
            why = await health.wait_suspect()
            if not await self._warming.is_answered(engine, info):
                health.is_sick = True
                raise EngineDeadError(f"ejected: {why}, and it does not answer as it should")
            log.warning("the engine is well, although %s", why)
            health.begin()

    async def _watch_use(self) -> None:
        """Let go of the engine once it was unused for as long as its deployment says now."""
        while True:
            deployment = self._watch.current or self.deployment
            if len(self._streams):
                self._rest.used()
            elif deployment is not None and self._rest.is_due(deployment):
                self._streams.rest()
                raise UnusedError
            await asyncio.sleep(LOOK_SECONDS)

    async def _watch_stats(self, engine: Engine) -> None:
        while True:
            self.stats = await engine.stats()
            self._streams.consider(self.stats)
            self._prefilling.consider()
            await self._metrics.prompt_caches.flush(self._redis)
            await asyncio.sleep(STATS_SECONDS)

    async def _follow_limit(self, engine: Engine, info: EngineInfo) -> None:
        """Apply the deployment's batch bound while the engine runs; everything else waits for the next start."""
        while True:
            places = self._streams.places
            slots = min(self.max_num_seqs, places.batch_max or self.max_num_seqs)
            engine.limit(slots + spare_places(slots) if slots else info.max_num_seqs)
            places.changed.set()
            deployment = await self._watch.wait_change()
            places.batch_max = deployment.batch_max
            self._streams.batch.configure(deployment)

    async def _answer_warm_ups(self, engine: Engine, info: EngineInfo) -> None:
        while True:
            await self._warm_up_wanted.wait()
            self._warm_up_wanted.clear()
            if not len(self._streams) and self._warming.idle_seconds >= self._warm_up_if_idle:
                log.info("warm-up generation")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EXERCISE_SECONDS):
                        await self._warming.generate(engine, info)
                        await self._warming.exercise(engine, info)
                        self._metrics.warm_ups.inc()

    def want_warm_up(self, if_idle_seconds: float) -> None:
        """Have the engine warmed where it has done nothing for so long; it is looked at once nothing else is warmed."""
        self._warm_up_if_idle = if_idle_seconds
        self._warm_up_wanted.set()

    async def _follow_adapters(self) -> None:
        """Load adapters as the configuration names them; one that is asked for sooner is loaded then."""
        while True:
            known = self._watch.adapters
            await self._adapters.load(known)
            while self._watch.adapters == known:
                await self._watch.wait_change()

    async def _keep_registered(self, info: EngineInfo) -> None:
        while True:
            await asyncio.sleep(ASSETS_SECONDS / 7)
            await self._register(info)

    async def _register(self, info: EngineInfo) -> None:
        while True:
            try:
                return await register(self._redis, info.assets)
            except RedisError as error:
                log.warning("cannot register the model: %s", error)
                await asyncio.sleep(1.0)

    # ---- between two lives

    def _note_end(self, error: EngineDeadError) -> None:
        """Say how an engine has ended that was to go on."""
        health = self._streams.health
        has_served = self.state is WorkerState.READY
        end = EngineEnd.EJECTED if health.is_sick else EngineEnd.DIED if has_served else EngineEnd.NOT_STARTED
        self.last_error = str(error)
        log.warning("engine failed (%s): %s", end.value, error)
        health.engine_ended()
        self._metrics.engine_ended(end)

    async def _wait_in_quarantine(self, deployment: DeploymentConfig) -> None:
        """Start nothing until a person has it tried again, or the engine is configured otherwise."""
        health = self._streams.health
        self.last_error = (
            f"Quarantined: {health.engine_failures} engines, or processes with theirs, have ended within"
            f" {self._config.healing.quarantine_seconds:.0f} s. Mend what ends them, and start this worker's engine"
            f" again on its page. {self.last_error or 'The last processes have died.'}"
        )
        log.error("%s", self.last_error)
        self._enter(WorkerState.BROKEN)
        self._metrics.quarantined.set(1)
        try:
            await health.quarantine(self._watch.wait_other(deployment))
        finally:
            self._metrics.quarantined.set(0)
        await self._lives.forget()
        self._failures, self.last_error = 0, ""
        log.info("the quarantine is over, starting again")

    async def _wait_as_broken(self, deployment: DeploymentConfig, error: EngineRefusedError) -> None:
        self.last_error = str(error)
        log.warning("the engine refuses this configuration, waiting for another one: %s", error)
        self._enter(WorkerState.BROKEN)
        await self._watch.wait_other(deployment)

    async def _back_off(self, deployment: DeploymentConfig) -> None:
        """Wait before the next start, longer each time; another configuration ends the wait."""
        pause = min(self._config.restart_seconds * 2**self._failures, self._config.restart_max_seconds)
        self._failures += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._watch.wait_other(deployment)

    def _enter(self, state: WorkerState) -> None:
        if state is not self.state:
            self.state = state
            self._changed()


async def _in_its_life(engine: Engine, work: Coroutine[Any, Any, object], *, seconds: float) -> bool:
    """Have something done while the engine lives; False where it takes too long, and is cancelled.

    Raises:
        EngineDeadError: the engine has died before.
    """
    doing, death = asyncio.create_task(work), asyncio.create_task(engine.wait_death())
    try:
        await asyncio.wait({doing, death}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing
            return True
        if death.done():
            raise EngineDeadError(death.result())
        return False
    finally:
        await cancel_and_wait(doing)
        await cancel_and_wait(death)
