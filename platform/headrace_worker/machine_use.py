"""What this worker takes of its machine: memory of its processes and, where NVML is there, what its GPUs do."""

import asyncio
import importlib
import logging
from collections.abc import Sequence
from typing import Any

import psutil

from headrace_wire.fleet import GpuReading

log = logging.getLogger(__name__)

READ_SECONDS = 10.0


class MachineUse:
    """Reads every few seconds, in a thread: NVML may take some milliseconds."""

    def __init__(self, nvml: Any = None) -> None:  # noqa: ANN401  # a module without types
        """`nvml` is NVIDIA's module `pynvml`, where a test brings its own."""
        self.rss_bytes = 0
        """Memory of this process and its children; what they share counts for each."""
        self.gpu: GpuReading | None = None
        self._nvml = nvml

    async def run(self) -> None:
        """Read until cancelled."""
        self._nvml = self._nvml or await asyncio.to_thread(_open_nvml)
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(READ_SECONDS)

    def read(self) -> None:
        """Read once."""
        processes = [psutil.Process()]
        processes += processes[0].children(recursive=True)
        self.rss_bytes = sum(map(_rss, processes))
        if self._nvml is not None:
            try:
                self.gpu = _gpus_read(self._nvml, {process.pid for process in processes})
            except self._nvml.NVMLError as error:
                log.warning("the GPU cannot be read any more: %s", error)
                self._nvml, self.gpu = None, None


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


def _open_nvml() -> Any:  # noqa: ANN401  # a module without types
    """Return NVIDIA's module, or None on a machine without it or without a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("no GPU to be read: %s", error)
        return None
    return nvml


def _gpus_read(nvml: Any, pids: set[int]) -> GpuReading | None:  # noqa: ANN401  # a module without types
    """Return what the GPUs do on which our processes run; of a machine's only one where it does not say who runs there.

    Raises:
        NVMLError: it cannot be told (a slice of a GPU says nothing of its use).
    """
    devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ours = [device for device in devices if _runs_on(nvml, device, pids)]
    if not ours and len(devices) == 1:
        ours = devices
    if not ours:
        return None
    use = [nvml.nvmlDeviceGetUtilizationRates(device) for device in ours]
    watts = [_watts(nvml, device) for device in ours]
    return GpuReading(
        utilization=_mean([one.gpu / 100 for one in use]),
        bandwidth=_mean([one.memory / 100 for one in use]),
        memory_bytes=sum(nvml.nvmlDeviceGetMemoryInfo(device).used for device in ours),
        clock_mhz=_mean([nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) for device in ours]),
        power_watts=None if None in watts else sum(watt for watt in watts if watt is not None),
    )


def _runs_on(nvml: Any, device: Any, pids: set[int]) -> bool:  # noqa: ANN401  # a module without types
    return any(process.pid in pids for process in nvml.nvmlDeviceGetComputeRunningProcesses(device))


def _watts(nvml: Any, device: Any) -> float | None:  # noqa: ANN401  # a module without types
    try:
        return float(nvml.nvmlDeviceGetPowerUsage(device)) / 1000
    except nvml.NVMLError:
        return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
