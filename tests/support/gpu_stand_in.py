"""A GPU for the workers of a live stack: NVIDIA's binding over a stand-in, whose memory is as full as a file says."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.environment import child_environment
from tests.support.nvml_library import Gpu, NvmlLibrary, load_binding

TOTAL_BYTES = 80 << 30
BINDING = "from tests.support.gpu_stand_in import load\n\nload(__file__)\n"
_FILE = "used_bytes"


def gpu_install(folder: Path, share: float) -> str:
    """Makes a folder with it, so full; returns the PYTHONPATH with which a process finds it as `pynvml`."""
    folder.mkdir()
    gpu_fill(folder, share)
    (folder / "pynvml.py").write_text(BINDING, "utf-8")
    return os.pathsep.join([str(folder), child_environment()["PYTHONPATH"]])


def gpu_fill(folder: Path, share: float) -> None:
    """Has so much of its memory in use from here on, 0 to 1."""
    fresh = folder / f"{_FILE}.new"
    fresh.write_text(str(int(share * TOTAL_BYTES)), "utf-8")
    fresh.replace(folder / _FILE)


def load(file: str) -> None:
    """Is called by the module that stands for the binding, which the real one takes the place of."""
    gpu = Gpu(gpu=50, memory=20, total=TOTAL_BYTES, clock=1500, milliwatts=70_000)
    library = _Following([gpu], file=Path(file).with_name(_FILE))
    load_binding(library, lambda module: sys.modules.__setitem__("pynvml", module))


@dataclass
class _Following(NvmlLibrary):
    """Reads how full it is whenever it is asked something."""

    file: Path = field(default_factory=Path, kw_only=True)

    def _gpu(self, handle: int, name: str) -> tuple[Gpu, int]:
        self.gpus[handle - 1].used = int(self.file.read_text("utf-8"))
        return super()._gpu(handle, name)
