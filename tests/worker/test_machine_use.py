"""Memory and GPUs of a worker. NVML is spoken to in its own words by a machine that has what a test says."""

import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace_wire.fleet import GpuReading
from headrace_worker.machine_use import MachineUse


class NVMLError(Exception):
    """As `pynvml.NVMLError`."""


@dataclass
class Device:
    """One GPU, in NVML's units."""

    gpu: int = 0
    memory: int = 0
    used: int = 0
    clock: int = 0
    milliwatts: int | None = None
    pids: list[int] = field(default_factory=list)


@dataclass
class Machine:
    """As much of `pynvml` as is asked for."""

    devices: list[Device]
    is_gone: bool = False
    NVML_CLOCK_SM = 1
    NVMLError = NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  # NVIDIA's name, as those below
        if self.is_gone:
            raise NVMLError("GPU is lost")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in device.pids]

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=device.gpu, memory=device.memory)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:  # noqa: N802
        return SimpleNamespace(used=device.used)

    def nvmlDeviceGetClockInfo(self, device: Device, _clock: int) -> int:  # noqa: N802
        return device.clock

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:  # noqa: N802
        if device.milliwatts is None:
            raise NVMLError("Not Supported")
        return device.milliwatts


def test_memory_is_that_of_the_worker_and_its_children() -> None:
    use = MachineUse()
    use.read()
    alone = use.rss_bytes
    assert alone > 0.5 * psutil.Process().memory_info().rss  # other tests may have left servers among the children
    script = "held = bytearray(200 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        use.read()
        child.communicate(b"\n")
    assert use.rss_bytes > alone + (150 << 20)
    assert use.gpu is None


def test_a_worker_reads_the_gpus_that_it_runs_on() -> None:
    own = psutil.Process().pid
    use = MachineUse(
        Machine([
            Device(80, 40, 1000, 1500, 300_000, [own]),
            Device(99, 99, 9999, 999, 999_000, [1]),
            Device(40, 20, 500, 1700, 200_000, [1, own]),
        ])
    )  # fmt: skip
    use.read()
    assert use.gpu == GpuReading(pytest.approx(0.6), pytest.approx(0.3), 1500, 1600, pytest.approx(500))  # type: ignore[arg-type]


def test_the_only_gpu_is_read_where_it_does_not_say_who_runs_there() -> None:
    use = MachineUse(Machine([Device(50, 10, 1000, 1500)]))
    use.read()
    assert use.gpu == GpuReading(0.5, 0.1, 1000, 1500, None)


def test_others_gpus_are_not_told() -> None:
    use = MachineUse(Machine([Device(50, pids=[1]), Device(50, pids=[2])]))
    use.read()
    assert use.gpu is None


def test_a_gpu_that_is_lost_is_not_asked_again() -> None:
    machine = Machine([Device(50)])
    use = MachineUse(machine)
    use.read()
    machine.is_gone = True
    use.read()
    assert use.gpu is None
    machine.is_gone = False
    use.read()
    assert use.gpu is None
    assert use.rss_bytes > 0
