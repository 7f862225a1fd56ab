"""The LoRA adapters that an engine has: checked files only, loaded before they are used.

An engine holds so many at once. One more takes the place of the one used longest ago that no stream needs; it is loaded
again, and its files looked at again, when it is asked for. What a digest says was checked is what is loaded: files that
have changed since are refused, until a check has given them a revision of their own.

Where streams need all that are loaded, adapters come in the order in which they were first asked for, each with all who
wait for it. While one waits, the one used longest ago is leaving: who asks for that one stands in line behind, so that
it can be waited for until its last stream has ended, and not for ever.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace_wire.adapters import AdapterConfig, AdapterReport, AdapterUse
from headrace_worker.adapter_files import AdapterFilesError, adapter_folder, revision_of
from headrace_worker.engine import AdapterRefusedError, Engine, EngineAdapter, EngineDeadError, EngineInfo

log = logging.getLogger(__name__)

PLACE_SECONDS = 0.1
"""How often a load looks whether a stream has left an adapter that could make room."""

GONE = "the engine that was to load it is gone"

REFUSED_SECONDS = 5.0
"""How long a problem is believed before the files are looked at again."""


class AdapterShelf:
    """Belongs to a worker; holds nothing while there is no engine."""

    def __init__(self, folder: Path | None, *, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `reports` says something else."""
        self._folder = folder
        self._changed = changed
        self._engine: Engine | None = None
        self._places = 0
        self._loaded: dict[str, EngineAdapter] = {}
        """By key; the one used longest ago first."""
        self._numbers = 0
        self._turn = asyncio.Lock()
        """First come, first served: the line of the adapters that are not there."""
        self._coming: dict[str, asyncio.Event] = {}
        """Of each adapter in the line, by key; set when it is there, or is not to come."""
        self._leaving = ""
        """Key of the one whose place somebody waits for."""
        self._refused: dict[str, tuple[float, str]] = {}
        self._known: Sequence[AdapterConfig] = ()
        self.in_use: Callable[[], set[str]] = set
        """Keys that streams have got here and need; who waits in `get` needs none yet."""

    def attach(self, engine: Engine, info: EngineInfo) -> None:
        """Fill this engine; it has none yet."""
        self.detach()
        self._engine, self._places = engine, info.max_adapters

    def detach(self) -> None:
        """The engine is gone, with all that was loaded."""
        self._engine, self._places = None, 0
        self._loaded.clear()
        self._refused.clear()

    @property
    def reports(self) -> tuple[AdapterReport, ...]:
        """What became of the adapters that the configuration names."""
        return tuple(
            AdapterReport(adapter.id, adapter.revision, self._problem(adapter.use))
            for adapter in self._known
            if adapter.use.key in self._loaded or adapter.use.key in self._refused
        )

    async def load(self, adapters: Sequence[AdapterConfig]) -> None:
        """Load those that the configuration names, as many as there is room for; forget what it names no more.

        Raises:
            EngineDeadError: the engine is gone.
        """
        self._known = adapters
        wanted = {adapter.use.key for adapter in adapters}
        await self._drop([key for key in self._loaded if key not in wanted])
        self._refused = {key: problem for key, problem in self._refused.items() if key in wanted}
        for adapter in adapters[: self._places] if self._places else adapters:
            try:
                await self.get(adapter.use)
            except AdapterRefusedError as error:
                log.warning("adapter %s (%s) is not loaded: %s", adapter.name, adapter.use.key, error)
        self._changed()

    async def get(self, adapter: AdapterUse, *, is_kept: bool = False) -> EngineAdapter:
        """Return an adapter for the engine, loading it first where it is not there.

        `is_kept` says that who asks is one of those that `in_use` speaks of: it is what others in the line wait for.

        Raises:
            AdapterRefusedError: it cannot be used here.
            EngineDeadError: the engine is gone.
        """
        engine = self._attached()
        while self._attached() is engine:
            if (is_kept or adapter.key != self._leaving) and (found := self._take(adapter)) is not None:
                return found
            refused_at, problem = self._refused.get(adapter.key, (0.0, ""))
            if problem and time.monotonic() - refused_at < REFUSED_SECONDS:
                raise AdapterRefusedError(problem)
            if (coming := self._coming.get(adapter.key)) is None:
                return await self._come(adapter, engine)
            await coming.wait()
        raise EngineDeadError(GONE)

    def _take(self, adapter: AdapterUse) -> EngineAdapter | None:
        """Return one that is there, from now on the one used last."""
        if (found := self._loaded.pop(adapter.key, None)) is not None:
            self._loaded[adapter.key] = found
        return found

    async def _come(self, adapter: AdapterUse, engine: Engine) -> EngineAdapter:
        """Stand in line for all who ask for this adapter."""
        coming = self._coming[adapter.key] = asyncio.Event()
        try:
            async with self._turn:
                if self._engine is not engine:
                    raise EngineDeadError(GONE)
                return self._take(adapter) or await self._load(adapter)
        except AdapterRefusedError as error:
            self._refused[adapter.key] = (time.monotonic(), str(error))
            self._changed()
            raise
        finally:
            del self._coming[adapter.key]
            coming.set()

    async def _load(self, adapter: AdapterUse) -> EngineAdapter:
        engine = self._attached()
        if not self._places:
            raise AdapterRefusedError("This worker's engine was started without LoRA adapters (enable_lora).")
        try:
            folder = adapter_folder(self._folder, adapter.place)
            revision = await asyncio.to_thread(revision_of, folder)
        except AdapterFilesError as error:
            raise AdapterRefusedError(str(error)) from error
        except OSError as error:
            raise AdapterRefusedError(f"Its files cannot be read: {error.strerror}.") from error
        if revision != adapter.revision:
            raise AdapterRefusedError("Its files are not those that were checked.")
        await self._make_room(engine)
        self._numbers += 1
        loading = EngineAdapter(self._numbers, adapter.key, str(folder))
        await engine.load_adapter(loading)
        if engine is self._engine:
            self._loaded[adapter.key] = loading
        self._refused.pop(adapter.key, None)
        self._changed()
        log.info("adapter %s (%s) is loaded", adapter.name, adapter.key)
        return loading

    async def _make_room(self, engine: Engine) -> None:
        """Wait until one more can be loaded.

        Raises:
            EngineDeadError: the engine is gone; who waited is not to keep others from the next one.
        """
        try:
            while self._attached() is engine and len(self._loaded) >= self._places:
                in_use = self.in_use()
                idle = next((key for key in self._loaded if key not in in_use), None)
                if idle is not None:
                    await self._drop([idle])
                else:
                    self._leaving = self._leaving or next(iter(self._loaded))
                    await asyncio.sleep(PLACE_SECONDS)
        finally:
            self._leaving = ""
        if self._engine is not engine:
            raise EngineDeadError(GONE)

    def _attached(self) -> Engine:
        if self._engine is None:
            raise EngineDeadError("no engine")
        return self._engine

    async def _drop(self, keys: Sequence[str]) -> None:
        """Unload adapters that no stream needs; one that came for one of them meanwhile keeps it."""
        for key in keys:
            if key in self.in_use() or self._engine is None:
                continue
            if (loaded := self._loaded.pop(key, None)) is not None:
                await self._engine.unload_adapter(loaded.number)

    def _problem(self, adapter: AdapterUse) -> str:
        return "" if adapter.key in self._loaded else self._refused.get(adapter.key, (0.0, ""))[1]
