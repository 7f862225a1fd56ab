"""What the machine itself takes for things that each token needs; figures of two days need it beside them."""

import mmap
import random
import statistics
import subprocess
import time
from array import array
from collections.abc import Callable

from msgspec import Struct

from tests.load.placement import Placement, on_core

_WAKE_UPS, _PAGES, _STEPS = 2_000, 4_096, 200_000
_CHAIN = 1 << 20
"""Of 8-byte numbers: more than a core's own caches hold."""
_PASSES = 5


class HostCosts(Struct, frozen=True):
    """Medians of some passes, in us.

    A hypervisor that lends memory and sleeping cores to others makes each of them vary tenfold from hour to hour.
    """

    wake_up: float
    """A byte to a process on the other core and back."""
    page: float
    """The first touch of a page of memory, which the hypervisor may have to find first."""
    memory: float
    """A read that no cache has, and the Python around it."""

    def cells(self) -> list[str]:
        """Returns its figures as a table's cells."""
        return [f"{self.wake_up:.1f}", f"{self.page:.2f}", f"{self.memory:.2f}"]


def host_costs(placement: Placement) -> HostCosts:
    """Measures this machine, in about two seconds."""
    with on_core(placement.system):
        echo = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    with echo, on_core(placement.load):
        wake_up = _median(lambda: _wake_ups(echo), _WAKE_UPS)
        chain = _chain()
        return HostCosts(wake_up, _median(_touch, _PAGES), _median(lambda: _follow(chain), _STEPS))


def _median(one_pass: Callable[[], None], count: int) -> float:
    passes = []
    for _ in range(_PASSES):
        began = time.perf_counter()
        one_pass()
        passes.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(passes)


def _wake_ups(echo: "subprocess.Popen[bytes]") -> None:
    assert echo.stdin is not None
    assert echo.stdout is not None
    for _ in range(_WAKE_UPS):
        echo.stdin.write(b"x")
        echo.stdout.read(1)


def _touch() -> None:
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
        for page in range(_PAGES):
            memory[page * mmap.PAGESIZE] = 1


def _chain() -> "array[int]":
    """Returns numbers of which each names the next one, without an order that a processor could guess."""
    order = list(range(_CHAIN))
    random.Random(1).shuffle(order)
    chain = array("q", bytes(8 * _CHAIN))
    for here, there in zip(order, [*order[1:], order[0]], strict=True):
        chain[here] = there
    return chain


def _follow(chain: "array[int]") -> None:
    place = 0
    for _ in range(_STEPS):
        place = chain[place]
