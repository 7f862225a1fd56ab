"""What this worker takes of its machine: memory of its processes and, where NVML is there, what its GPUs do."""

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import Any

import psutil

from headrace_wire.fleet import GpuReading

log = logging.getLogger(__name__)

READ_SECONDS = 10.0


class MachineUse:
    """Reads every few seconds, in a thread: NVML may take some milliseconds."""

    def __init__(self) -> None:
        self.rss_bytes = 0
        """Memory of this process and its children; what they share counts for each."""
        self.gpu: GpuReading | None = None
        self._nvml: Any = None

    async def run(self) -> None:
        """Read until cancelled."""
        await asyncio.to_thread(self.open)
        while True:
            await asyncio.to_thread(self.read)
            await asyncio.sleep(READ_SECONDS)

    def open(self) -> None:
        """Load NVIDIA's library, where there is one."""
        self._nvml = _open_nvml()

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


def _is_unsupported(nvml: Any, error: Exception) -> bool:  # noqa: ANN401  # a module without types
    return getattr(error, "value", None) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION)


def _gpus_read(nvml: Any, pids: set[int]) -> GpuReading | None:  # noqa: ANN401  # a module without types
    """Return what the GPUs do on which our processes run; of a machine's only one where it does not say who runs there.

    Raises:
        NVMLError: it cannot be told.
    """
    devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ours = [device for device in devices if _runs_on(nvml, device, pids)]
    if not ours and len(devices) == 1:
        ours = devices
    if not ours:
        return None

    def of_each(call: Callable[[Any], float]) -> list[float] | None:
        """What each GPU measures; None where one of them does not."""
        try:
            return [float(call(device)) for device in ours]
        except nvml.NVMLError as error:
            if not _is_unsupported(nvml, error):
                raise
            return None

    memory = [nvml.nvmlDeviceGetMemoryInfo(device) for device in ours]
    milliwatts = of_each(nvml.nvmlDeviceGetPowerUsage)
    return GpuReading(
        utilization=_mean(of_each(lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)),
        bandwidth=_mean(of_each(lambda device: nvml.nvmlDeviceGetUtilizationRates(device).memory / 100)),
        memory_bytes=sum(one.used for one in memory),
        clock_mhz=_mean(of_each(lambda device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))),
        power_watts=None if milliwatts is None else sum(milliwatts) / 1000,
        memory_total_bytes=sum(one.total for one in memory),
    )


def _runs_on(nvml: Any, device: Any, pids: set[int]) -> bool:  # noqa: ANN401  # a module without types
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    except nvml.NVMLLibraryMismatchError:  # the driver is older than the binding, and this alone has changed
        return False
    except nvml.NVMLError as error:
        if not _is_unsupported(nvml, error):
            raise
        return False
    return any(process.pid in pids for process in running)


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None
