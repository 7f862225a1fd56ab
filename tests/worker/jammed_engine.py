"""A simulated engine that gives nothing until it is told to, however long a test takes to look."""

from msgspec.structs import force_setattr
from tokenizers import Tokenizer

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import EngineRequest
from headrace_worker.simulated_config import CoreConfig, SimulatedArgs
from headrace_worker.simulated_engine import SimulatedEngine

HOUR = 3600.0


class Jam:
    """Shared by all engines that a worker starts one after the other."""

    def __init__(self) -> None:
        self.is_on = True
        """What comes now is begun, and is still in its prefill when it is aborted."""


class JammedEngine(SimulatedEngine):
    """Computes the prompts that come while its jam lasts for an hour; warm-ups are not among them."""

    def __init__(self, deployment: DeploymentConfig, jam: Jam) -> None:
        super().__init__(deployment)
        self._jam = jam
        self._config: CoreConfig | None = None
        self._ttft_seconds = 0.0

    def _core_config(self, args: SimulatedArgs, tokenizer: Tokenizer) -> CoreConfig:
        self._config = super()._core_config(args, tokenizer)
        self._ttft_seconds = self._config.ttft_seconds
        return self._config

    async def submit(self, request: EngineRequest) -> None:
        assert self._config is not None
        is_jammed = self._jam.is_on and not request.request_id.startswith("warm-")
        force_setattr(self._config, "ttft_seconds", HOUR if is_jammed else self._ttft_seconds)
        await super().submit(request)
