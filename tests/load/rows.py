"""The rows of the bench: what each is called, which case of the issue it is, how long it takes on a quiet machine."""

import argparse
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.load.placement import Placement
from tests.load.results import Rendered

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a row needs to know of the run that it is part of."""

    options: argparse.Namespace
    placement: Placement
    progress: Progress
    plot_path: Callable[[str], Path]
    usual_rounds: int = 1
    until: float = float("inf")
    """When the row must be done, in `monotonic` time. One that may repeat rounds does not begin another one then."""

    @property
    def rounds(self) -> int:
        """How many rounds are asked for."""
        return self.options.rounds or self.usual_rounds

    def has_time_for(self, seconds: float) -> bool:
        """Whether so much is left."""
        return time.monotonic() + seconds < self.until


Measured = tuple[list[Rendered], Any]


class RowPlan(Struct, frozen=True):
    """A row."""

    name: str
    case: str
    """Of the issue."""
    seconds: float
    """With the bench's own numbers, start and end of its processes included, on two quiet cores."""
    text: str
    module: str
    """Where its function is, which is called like the row."""
    rounds: int = 1
    """Without a number of the caller's own; of the guard's streams, twice as many are made."""
    is_tolerant: bool = False
    """Whether its margins are so wide that it may run beside the soak."""
    own_check: bool = False
    """Whether it leaves out disturbed rounds itself."""
    is_usual: bool = True
    """Whether it is measured when no row is named."""

    @property
    def function(self) -> Callable[[Run], Measured]:
        """What measures it. What that needs is imported only now, in the row's own process."""
        found: Callable[[Run], Measured] = getattr(importlib.import_module(self.module), self.name.replace("-", "_"))
        return found

    def measure(self, run: Run) -> Measured:
        """Measures it."""
        return self.function(run)


_OWN, _ENGINE, _PEERS = "tests.load.own_rows", "tests.load.engine_rows", "tests.load.peers.peer_rows"

ROWS = (
    RowPlan("soak", "11", 1206, "20 minutes with cancels and reconnects: memory, errors", _PEERS),
    RowPlan("install", "-", 120, "LiteLLM, locust, smg, uvicorn, SmolLM2: once", _OWN, is_tolerant=True),
    RowPlan("guard", "10", 14, "rules that judge character by character", _OWN, is_tolerant=True),
    RowPlan("failover", "8", 50, "resume, takeover, drain", _OWN, is_tolerant=True),
    RowPlan("checkpoints", "8", 50, "a resumed stream with its checkpoint and without", _ENGINE, 3, is_tolerant=True),
    RowPlan(
        "prompt-cache", "F", 100, "a pinned prefix, and what another tenant sees of it", _ENGINE, 2, is_tolerant=True
    ),
    RowPlan("batch", "G", 80, "the rules of the dynamic batch", _OWN, is_tolerant=True),
    RowPlan("server", "12", 60, "the ASGI server alone, beside uvicorn", _PEERS, 2, is_tolerant=True),
    RowPlan("sim", "A", 100, "the simulated engine behind the whole path", _OWN, 2, is_tolerant=True),
    RowPlan("path", "1-3", 450, "beside LiteLLM and nginx: latency, CPU per token", _PEERS, 7, own_check=True),
    RowPlan("floor", "3", 20, "a bare program that carries tokens and nothing else", _OWN, 3),
    RowPlan("fast", "6", 85, "16 streams x 330 tok/s", _PEERS, 7, own_check=True),
    RowPlan("growth", "4", 135, "16 and 1,024 streams", _PEERS, 3),
    RowPlan("guarded", "10", 47, "32 streams under a policy", _PEERS, 3),
    RowPlan("cache", "F", 105, "answers from the response cache beside LiteLLM's", _PEERS, 3),
    RowPlan("slo", "SLO", 62, "locust's classic test, 1,000 short answers a second", _PEERS),
    RowPlan("client", "client", 80, "our load client and vllm bench serve", _PEERS, 2),
    RowPlan("vllm", "5", 200, "beside vllm serve, tiny model", _ENGINE),
    RowPlan("vllm-smol", "5", 160, "beside vllm serve, SmolLM2, few prompts", _ENGINE),
    RowPlan("slow", "7", 85, "slow readers and their neighbours", _ENGINE, 2),
    RowPlan("admission", "9", 130, "decisions with thousands waiting, a greedy neighbour", _OWN, 3),
    RowPlan("draft", "F", 65, "a prompt that was computed while it was typed", _ENGINE, 2),
    RowPlan("affinity", "F", 120, "three workers beside smg", _OWN),
    RowPlan("crowd", "7", 55, "2,300 clients", _OWN),
    RowPlan("latency-book", "G", 65, "the latency book beside what clients see", _OWN, is_usual=False),
    RowPlan("idle", "F", 660, "the first token after ten minutes without requests", _ENGINE, is_usual=False),
)
"""In the order in which they are measured: a bench that runs out of time lacks the last ones."""

PEER_ROWS = tuple(row.name for row in ROWS if row.module == _PEERS)
QUICK_ROWS = ("path", "fast", "growth", "guarded", "cache", "soak", "slo")
