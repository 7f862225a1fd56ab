"""A simulated engine that lives and gives its streams up, and one that does not come to life."""

from headrace_wire.messages import FinishReason
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import Deliver, EngineDeadError, EngineInfo, EngineOutput, EngineRequest
from headrace_worker.simulated_engine import SimulatedEngine


class Sickness:
    """Shared by all engines that a worker starts one after the other."""

    def __init__(self) -> None:
        self.is_on = False
        """Whatever has a token is given up with the next one."""
        self.started = 0
        """Engines."""


class SickEngine(SimulatedEngine):
    """Gives streams up while its sickness lasts, and has got well in the next life; warm-ups are no streams."""

    def __init__(self, deployment: DeploymentConfig, sickness: Sickness) -> None:
        super().__init__(deployment)
        self._sickness = sickness
        self._streams: dict[str, int] = {}

    async def start(self, deliver: Deliver) -> EngineInfo:
        def give_up(outputs: list[EngineOutput]) -> None:
            for output in outputs:
                if output.request_id in self._streams:
                    self._streams[output.request_id] += len(output.token_ids)
                    if self._sickness.is_on and self._streams[output.request_id] > 1:
                        output.finish_reason = FinishReason.ABORT
            deliver(outputs)

        self._sickness.is_on = False
        self._sickness.started += 1
        return await super().start(give_up)

    async def submit(self, request: EngineRequest) -> None:
        if request.stream_id:
            self._streams[request.request_id] = 0
        await super().submit(request)


class StillbornEngine(SimulatedEngine):
    """Starts only where `luck` has something in it, one for each start; what is not said comes first."""

    def __init__(self, deployment: DeploymentConfig, luck: list[bool]) -> None:
        super().__init__(deployment)
        self._luck = luck

    async def start(self, deliver: Deliver) -> EngineInfo:
        if not self._luck or not self._luck.pop(0):
            raise EngineDeadError("there is no GPU")
        return await super().start(deliver)
