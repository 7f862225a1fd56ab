"""What the machine itself takes for things that each token needs; figures of two days need it beside them."""

import json
import mmap
import random
import re
import statistics
import subprocess
import textwrap
import time
from array import array
from collections.abc import Callable

from msgspec import Struct

from tests.load.placement import Placement, on_core

_WAKE_UPS, _PAGES, _STEPS = 2_000, 4_096, 200_000
_CHAIN = 1 << 20
"""Of 8-byte numbers: more than a core's own caches hold."""
_PASSES = 5
_COLD_SECONDS, _COLD_RUNS, _WARM_RUNS = 0.02, 50, 1_000


class HostCosts(Struct, frozen=True):
    """Medians of some passes, in us.

    A hypervisor that lends memory, caches and sleeping cores to others makes each vary tenfold from hour to hour.
    """

    wake_up: float
    """A byte to a process on the other core and back."""
    page: float
    """The first touch of a page of memory, which the hypervisor may have to find first."""
    memory: float
    """A read that no cache has, and the Python around it."""
    warm: float
    """A piece of Python work of some breadth, done over and over."""
    cold: float
    """The same, 20 ms after the last time, as a gateway has it whose streams get 50 tokens a second: what the core's
    other tenants leave of its caches. A system that always computes never pays this."""

    def cells(self) -> list[str]:
        """Returns its figures as a table's cells."""
        return [f"{self.wake_up:.1f}", f"{self.page:.2f}", f"{self.memory:.2f}", f"{self.warm:.0f}", f"{self.cold:.0f}"]


def host_costs(placement: Placement) -> HostCosts:
    """Measures this machine, in about two seconds."""
    with on_core(placement.system):
        echo = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    with echo, on_core(placement.load):
        wake_up = _median(lambda: _wake_ups(echo), _WAKE_UPS)
        chain = _chain()
        page, memory = _median(_touch, _PAGES), _median(lambda: _follow(chain), _STEPS)
        return HostCosts(wake_up, page, memory, *_warm_and_cold())


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


def _warm_and_cold() -> tuple[float, float]:
    seconds = []
    for _ in range(_COLD_RUNS):
        until = time.perf_counter() + _COLD_SECONDS
        while time.perf_counter() < until:  # awake: only others can have displaced what the caches held
            pass
        began = time.thread_time()
        _work()
        seconds.append(time.thread_time() - began)
    return _median(_work_over_and_over, _WARM_RUNS), statistics.median(seconds) * 1e6


def _work_over_and_over() -> None:
    for _ in range(_WARM_RUNS):
        _work()


def _work() -> None:
    json.loads(json.dumps({"tokens": [1, 2, 3], "text": "water wheel", "usage": {"prompt": 7}}))
    textwrap.wrap("the mill stands by the water", 12)
    re.sub(r"l+", "l", "a mill by a mill")
    sorted(({"place": place} for place in range(10)), key=lambda one: -one["place"])
