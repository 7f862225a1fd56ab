"""Memory and GPUs of a worker. NVML is spoken to by NVIDIA's own binding, down to the C functions of its library."""

import subprocess
import sys

import psutil
import pytest

from headrace_wire.fleet import GpuReading
from headrace_worker.machine_use import MachineUse
from tests.support.nvml_library import DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_SUPPORTED, Gpu, NvmlLibrary, install

GIB = 1 << 30
OWN = psutil.Process().pid


def machine(monkeypatch: pytest.MonkeyPatch, library: NvmlLibrary | None) -> MachineUse:
    """A worker on a machine with such a driver."""
    install(monkeypatch, library)
    return MachineUse()


def reading(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, lacks: set[str] | None = None) -> GpuReading | None:
    use = machine(monkeypatch, NvmlLibrary(list(gpus), lacks=lacks or set()))
    use.open()
    use.read()
    return use.gpu


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


def test_a_worker_reads_the_gpus_that_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading(
        monkeypatch,
        Gpu(80, 40, 72 * GIB, 80 * GIB, 1500, 300_000, [OWN]),
        Gpu(99, 99, 79 * GIB, 80 * GIB, 999, 999_000, [1]),
        Gpu(40, 20, 8 * GIB, 80 * GIB, 1700, 200_500, [1, OWN]),
    )
    assert found == GpuReading(
        utilization=pytest.approx(0.6),  # type: ignore[arg-type]
        bandwidth=pytest.approx(0.3),  # type: ignore[arg-type]
        memory_bytes=80 * GIB,
        clock_mhz=1600.0,
        power_watts=pytest.approx(500.5),  # type: ignore[arg-type]
        memory_total_bytes=160 * GIB,
    )
    assert found.memory_usage == 0.5


def test_the_only_gpu_is_read_where_it_does_not_say_who_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(50, 10, GIB, 4 * GIB, 1500, 70_000)
    assert reading(monkeypatch, gpu) == GpuReading(0.5, 0.1, GIB, 1500.0, 70.0, 4 * GIB)
    gpu.refuses = {"nvmlDeviceGetComputeRunningProcesses": NOT_SUPPORTED}
    assert reading(monkeypatch, gpu) == GpuReading(0.5, 0.1, GIB, 1500.0, 70.0, 4 * GIB)


def test_a_driver_that_is_older_than_the_binding_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = {"nvmlDeviceGetComputeRunningProcesses_v3"}
    assert reading(monkeypatch, Gpu(50, 10, GIB, 4 * GIB, 1500, 70_000), lacks=lacks) is not None
    assert reading(monkeypatch, Gpu(50, pids=[OWN]), Gpu(50), lacks=lacks) is None, "nobody knows which of them"


def test_others_gpus_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading(monkeypatch, Gpu(50, pids=[1]), Gpu(50, pids=[2])) is None
    assert reading(monkeypatch) is None


def test_what_a_gpu_does_not_measure_is_not_known_and_the_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a GPU (MIG) knows its memory, and neither its use nor its power."""
    no = {"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED, "nvmlDeviceGetPowerUsage": NOT_SUPPORTED}
    slice_ = Gpu(0, 0, 9 * GIB, 10 * GIB, 1500, pids=[OWN], refuses=no)
    assert reading(monkeypatch, slice_) == GpuReading(None, None, 9 * GIB, 1500.0, None, 10 * GIB)
    whole = Gpu(80, 40, 0, 0, 1500, 1000, [OWN])
    assert reading(monkeypatch, whole, slice_) == GpuReading(None, None, 9 * GIB, 1500.0, None, 10 * GIB)


def test_a_gpu_that_is_lost_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(50, total=GIB)
    library = NvmlLibrary([gpu])
    use = machine(monkeypatch, library)
    use.open()
    seen = []
    for refuses in ({}, {"nvml": GPU_IS_LOST}, {}):
        gpu.refuses = refuses
        asked = len(library.calls)
        use.read()
        seen.append((use.gpu is not None, len(library.calls) > asked))
    assert seen == [(True, True), (False, True), (False, False)]
    assert use.rss_bytes > 0


@pytest.mark.parametrize("library", [None, NvmlLibrary([Gpu(50)], init=DRIVER_NOT_LOADED)])
def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, library: NvmlLibrary | None) -> None:
    use = machine(monkeypatch, library)
    use.open()
    use.read()
    assert use.gpu is None
    assert use.rss_bytes > 0


def test_without_the_binding_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    use = MachineUse()
    use.open()
    use.read()
    assert use.gpu is None
