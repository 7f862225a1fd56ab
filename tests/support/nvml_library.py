"""A stand-in for NVIDIA's `libnvidia-ml.so.1`: C functions with nvml.h's signatures, that a machine's GPUs answer.

What speaks to it is the real Python binding (`pynvml` of nvidia-ml-py, of which vLLM carries a copy): it calls by
pointers to functions and reads structures of memory, as it does with a driver.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, GPU_IS_LOST = 7, 9, 15
CLOCK_SM = 1

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nvmlInitWithFlags": (ctypes.c_uint,),
    "nvmlDeviceGetCount_v2": (ctypes.POINTER(ctypes.c_uint),),
    "nvmlDeviceGetHandleByIndex_v2": (ctypes.c_uint, ctypes.c_void_p),
    "nvmlDeviceGetComputeRunningProcesses_v3": (
        *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)),
        ctypes.c_void_p,
    ),
    "nvmlDeviceGetMemoryInfo": (ctypes.c_void_p, ctypes.c_void_p),
    "nvmlDeviceGetUtilizationRates": (ctypes.c_void_p, ctypes.c_void_p),
    "nvmlDeviceGetClockInfo": (ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint)),
    "nvmlDeviceGetPowerUsage": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)),
}


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


@dataclass
class Gpu:
    """One GPU, in NVML's units."""

    gpu: int = 0
    """Percent of the time in which a kernel ran."""
    memory: int = 0
    """Percent of the time in which memory was read or written."""
    used: int = 0
    total: int = 0
    """Bytes."""
    clock: int = 0
    milliwatts: int = 0
    pids: list[int] = field(default_factory=list)
    refuses: dict[str, int] = field(default_factory=dict)
    """Functions that answer with an error, by the beginnings of their names."""


@dataclass
class NvmlLibrary:
    """The library, as `ctypes.CDLL` would return it."""

    gpus: list[Gpu]
    init: int = SUCCESS
    lacks: set[str] = field(default_factory=set)
    """Functions that an older driver does not have."""
    calls: list[str] = field(default_factory=list)
    _kept: dict[str, Any] = field(default_factory=dict)
    _has_begun: bool = False

    def __getattr__(self, name: str) -> Any:
        if name not in _FUNCTIONS or name in self.lacks:
            raise AttributeError(f"undefined symbol: {name}")
        if name not in self._kept:
            self._kept[name] = ctypes.CFUNCTYPE(ctypes.c_int, *_FUNCTIONS[name])(self._called(name))
        return self._kept[name]

    def _called(self, name: str) -> Callable[..., int]:
        answer = getattr(self, f"_{name.partition('_v')[0]}")

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name != "nvmlInitWithFlags" and not self._has_begun:
                return UNINITIALIZED
            try:
                return int(answer(*arguments) or SUCCESS)
            except IndexError:
                return INVALID_ARGUMENT

        return call

    def _gpu(self, handle: int, name: str) -> tuple[Gpu, int]:
        gpu = self.gpus[handle - 1]
        return gpu, next((error for start, error in gpu.refuses.items() if name.startswith(start)), SUCCESS)

    def _nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802  # NVIDIA's name, as those below
        self._has_begun = self.init == SUCCESS
        return self.init

    def _nvmlDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        count[0] = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex(self, index: int, handle: int) -> int:  # noqa: N802
        ctypes.c_void_p.from_address(handle).value = index + 1
        return self._gpu(index + 1, "nvmlDeviceGetHandleByIndex")[1]

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: int, count: Any, infos: int | None) -> int:  # noqa: N802
        gpu, error = self._gpu(handle, "nvmlDeviceGetComputeRunningProcesses")
        if error:
            return error
        room, count[0] = count[0], len(gpu.pids)
        if room < len(gpu.pids):
            return INSUFFICIENT_SIZE
        if infos is not None:
            there = (_ProcessInfo * room).from_address(infos)
            for place, pid in enumerate(gpu.pids):
                there[place] = _ProcessInfo(pid, gpu.used // len(gpu.pids), 0xFFFFFFFF, 0xFFFFFFFF)
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, handle: int, info: int) -> int:  # noqa: N802
        gpu, error = self._gpu(handle, "nvmlDeviceGetMemoryInfo")
        if not error:
            there = _Memory.from_address(info)
            there.total, there.used, there.free = gpu.total, gpu.used, gpu.total - gpu.used
        return error

    def _nvmlDeviceGetUtilizationRates(self, handle: int, rates: int) -> int:  # noqa: N802
        gpu, error = self._gpu(handle, "nvmlDeviceGetUtilizationRates")
        if not error:
            there = _Utilization.from_address(rates)
            there.gpu, there.memory = gpu.gpu, gpu.memory
        return error

    def _nvmlDeviceGetClockInfo(self, handle: int, kind: int, clock: Any) -> int:  # noqa: N802
        gpu, error = self._gpu(handle, "nvmlDeviceGetClockInfo")
        if not error:
            clock[0] = gpu.clock if kind == CLOCK_SM else 9_999
        return error

    def _nvmlDeviceGetPowerUsage(self, handle: int, milliwatts: Any) -> int:  # noqa: N802
        gpu, error = self._gpu(handle, "nvmlDeviceGetPowerUsage")
        if not error:
            milliwatts[0] = gpu.milliwatts
        return error


def install(monkeypatch: "pytest.MonkeyPatch", library: NvmlLibrary | None) -> None:
    """Has `import pynvml` find NVIDIA's Python binding, unused yet, with this library instead of a driver's."""
    load_binding(library, lambda module: monkeypatch.setitem(sys.modules, "pynvml", module))


def load_binding(library: NvmlLibrary | None, register: Callable[[ModuleType], None]) -> None:
    """Loads NVIDIA's binding anew; `register` has to put it among the modules as `pynvml` before it is run."""
    vllm = find_spec("vllm")
    assert vllm is not None, "make setup installs vLLM"
    assert vllm.origin is not None
    spec = spec_from_file_location("pynvml", Path(vllm.origin).parent / "third_party" / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    register(module)  # it looks itself up there
    spec.loader.exec_module(module)
    if library is not None:
        module.__dict__["nvmlLib"] = library
