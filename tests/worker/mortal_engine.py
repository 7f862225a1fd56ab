"""A simulated engine that dies when it is told to, to the token."""

from collections.abc import Sequence

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import Deliver, EngineInfo, EngineOutput, EngineRequest
from headrace_worker.simulated_engine import SimulatedEngine


class Fate:
    """Shared by all engines that a worker starts one after the other."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        """The next death comes with the first of these: when some answer reaches this position."""
        self.takes_its_last_words = False
        """The tokens of that step are lost with the engine."""
        self.deaths = 0

    def plan(self, positions: Sequence[int], *, takes_its_last_words: bool = False) -> None:
        self.positions = list(positions)
        self.takes_its_last_words = takes_its_last_words


class MortalEngine(SimulatedEngine):
    """Dies by `fate`."""

    def __init__(self, deployment: DeploymentConfig, fate: Fate) -> None:
        super().__init__(deployment)
        self._fate = fate
        self._reached: dict[str, int] = {}

    async def start(self, deliver: Deliver) -> EngineInfo:
        def deliver_or_die(outputs: list[EngineOutput]) -> None:
            if self._death.is_set():
                return
            for output in outputs:
                self._reached[output.request_id] += len(output.token_ids)
            positions = self._fate.positions
            dies = bool(positions) and any(self._reached[o.request_id] == positions[0] for o in outputs)
            if not (dies and self._fate.takes_its_last_words):
                deliver(outputs)
            if dies:
                positions.pop(0)
                self._fate.deaths += 1
                self._death.set()

        return await super().start(deliver_or_die)

    async def submit(self, request: EngineRequest) -> None:
        self._reached[request.request_id] = len(request.generated_ids)
        await super().submit(request)
