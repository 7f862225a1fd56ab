"""A simulated engine that lives and gives its streams up, and one that does not come to life."""

import asyncio

from headrace_wire.messages import FinishReason
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import Deliver, EngineDeadError, EngineInfo, EngineOutput, EngineRequest
from headrace_worker.simulated_engine import SimulatedEngine


class Sickness:
    """Shared by all engines that a worker starts one after the other."""

    def __init__(self) -> None:
        self.is_on = False
        """Streams that have a token are given up with the next one."""
        self.is_deep = False
        """So is the answer that its host asks for itself, to see whether it is well."""
        self.answered = asyncio.Event()
        """An engine has given its host such an answer, whole."""
        self.started = 0
        """Engines."""


class SickEngine(SimulatedEngine):
    """Gives streams up while its sickness lasts, and has got well in the next life; warm-ups are too short for it."""

    def __init__(self, deployment: DeploymentConfig, sickness: Sickness) -> None:
        super().__init__(deployment)
        self._sickness = sickness
        self._streams: dict[str, int] = {}
        self._own: dict[str, int] = {}

    async def start(self, deliver: Deliver) -> EngineInfo:
        def give_up(outputs: list[EngineOutput]) -> None:
            for output in outputs:
                given = self._streams if output.request_id in self._streams else self._own
                given[output.request_id] += len(output.token_ids)
                is_sick = self._sickness.is_on if given is self._streams else self._sickness.is_deep
                if is_sick and given[output.request_id] > 1:
                    output.finish_reason = FinishReason.ABORT
                elif given is self._own and given[output.request_id] > 1 and output.finish_reason is not None:
                    self._sickness.answered.set()
            deliver(outputs)

        self._sickness.is_on = self._sickness.is_deep = False
        self._sickness.started += 1
        return await super().start(give_up)

    async def submit(self, request: EngineRequest) -> None:
        (self._streams if request.stream_id else self._own)[request.request_id] = 0
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
