"""Causes of slowness, and how each is put into a running installation and taken out again.

What each adds to a stream is large beside what the machine is slow by itself, which is measured in the same run.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import ceil
from typing import Any

from apps.ops.diagnosis.causes import Cause
from tests.support import cause_acts as acts
from tests.support.live_stack import LiveStack
from tests.support.steady_load import Habits, SteadyLoad

STALL_SECONDS = 20.0
"""Of the tenant: after so long, a client that acknowledges nothing is cut."""
LEASE_SECONDS = 30.0
"""On a machine whose processes stand still for longer than usual leases, causes would come that nobody put in."""
LEAST_SECONDS, MOST_SECONDS = 3.0, 10.0
"""What an injection adds to a stream, in the mean and roughly."""
TIMES = 8.0
"""So many times what the gateway takes of a stream by itself."""

TTFT, TPOT = 0.2, 0.1
"""Of the engines, in seconds: slow enough for a busy machine to keep step, and for few streams to be a load."""
PACED: dict[str, Any] = {"ttft_ms": TTFT * 1000, "tpot_ms": TPOT * 1000}
QUICK: dict[str, Any] = {**PACED, "tpot_ms": 50, "process": True}
"""In a process that can be made to stand still."""
PLACES, STEP_EACH, KV_TOKENS, ROOM = 4, 0.03, 480, 8
"""`ROOM` of the requests that are asked for fit into the KV cache at once, at most."""
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "gateway": {"engine_args": PACED},
    "places": {"engine_args": PACED, "max_num_seqs": PLACES},
    "batch": {"engine_args": {**PACED, "tpot_ms": 60, "tpot_us_each": STEP_EACH * 1e6}, "max_num_seqs": 64},
    "restarts": {"engine_args": PACED},
    "prefixes": {"engine_args": {**PACED, "block_tokens": 16, "prefill_us": 1000}, "max_num_seqs": 16},
    "prompts": {"engine_args": {**PACED, "prefill_us": 1000}, "max_num_seqs": 16},
    "guarded": {"engine_args": {**PACED, "answer": acts.ANSWER}},
    "readers": {"engine_args": PACED},
    "network": {"engine_args": PACED},
    "stopped": {"engine_args": PACED},
    "memory": {"engine_args": {**PACED, "kv_tokens": KV_TOKENS}, "max_num_seqs": 64},
    "swings": {"engine_args": QUICK},
    "crowded": {"engine_args": QUICK},
    acts.UNUSED: {"engine_args": PACED},
}
"""One for each cause, whose streams are its own. Prompts have a token for each byte."""


@dataclass(frozen=True)
class Strength:
    """How strongly causes are put in."""

    slowness: float = 0.0
    """What the gateway takes of a stream on this machine: admission and the first token's last way, the mean."""

    @property
    def seconds(self) -> float:
        """What is to be added to a stream."""
        return min(MOST_SECONDS, max(LEAST_SECONDS, TIMES * self.slowness))

    def clients(self, at_once: int, stream_seconds: float) -> int:
        """Returns how many clients wait so long where so many streams of that length run at once."""
        return at_once + ceil(at_once * self.seconds / stream_seconds)


Shape = Callable[[Strength], Habits]
Act = Callable[[LiveStack, SteadyLoad, Strength], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One cause, and the deployment whose load has it."""

    cause: Cause
    deployment: str
    usual: Shape
    changed: Shape | None = None
    """While it is in."""
    begin: Act | None = None
    finish: Act | None = None
    slots: int = 2
    """How many samples of the fleet it takes."""
    timeouts: int = 0
    """How many streams must have ended at deadlines."""
    comes_during: bool = False
    """Its time begins before it."""
    lets_through: bool = True
    """Streams come to their ends."""
    is_shaped_before: bool = False
    """What is usual depends on how strongly it will be put in."""
    beside: tuple[str, ...] = ()
    """Other deployments whose workers it needs."""

    async def put_in(self, stack: LiveStack, load: SteadyLoad, strength: Strength) -> None:
        """Puts it in."""
        if self.begin is not None:
            await self.begin(stack, load, strength)
        if self.changed is not None:
            load.change(self.changed(strength))

    async def take_out(self, stack: LiveStack, load: SteadyLoad, strength: Strength) -> None:
        """Takes it out, also where it came in by half only."""
        if self.finish is not None:
            await self.finish(stack, load, strength)
        if self.changed is not None:
            load.change(self.usual(strength))


def _stream_seconds(tokens: int) -> float:
    return TTFT + TPOT * tokens


def _long_text(strength: Strength) -> str:
    """A prompt that takes so long to compute; two clients at once wait for each other's."""
    return ("These words stand at the beginning of each prompt. " * 200)[: int(strength.seconds * 500)]


def _clients(clients: int, tokens: int = 16, **habits: Any) -> Shape:
    return lambda _: Habits(clients=clients, tokens=tokens, **habits)


def _begins_alike(strength: Strength) -> Habits:
    text = _long_text(strength)
    return Habits(clients=2, tokens=8, prompt=lambda number: f"{text}{number}")


def _begins_anew(strength: Strength) -> Habits:
    text = _long_text(strength)
    return Habits(clients=2, tokens=8, prompt=lambda number: f"{number} {text}")


def _guarded(strength: Strength, api_key: str = "") -> Habits:
    return Habits(clients=4, tokens=min(len(acts.ANSWER) - 1, int(strength.seconds / TPOT)), api_key=api_key)


def injections(guarded_key: str) -> list[Injection]:
    """Returns all of them, in the order in which they are put in; `guarded_key` is one whose answers are guarded."""
    return [
        Injection(
            cause=Cause.GATEWAY,
            deployment="gateway",
            usual=_clients(4),
            begin=acts.gateway_stutters,
            finish=acts.hiccups_end,
        ),
        Injection(
            cause=Cause.CAPACITY,
            deployment="places",
            usual=_clients(3, 20),
            changed=lambda by: Habits(clients=by.clients(PLACES, _stream_seconds(20)), tokens=20),
        ),
        Injection(
            cause=Cause.CONTENTION,
            deployment="batch",
            usual=_clients(2),
            changed=lambda by: Habits(clients=2 + ceil(by.seconds / (16 * STEP_EACH))),
        ),
        Injection(
            cause=Cause.COLD_START,
            deployment="restarts",
            usual=_clients(4, 32),
            begin=acts.worker_restarts,
            comes_during=True,
        ),
        Injection(
            cause=Cause.PREFIX_MISSES,
            deployment="prefixes",
            usual=_begins_alike,
            changed=_begins_anew,
            is_shaped_before=True,
        ),
        Injection(
            cause=Cause.LONGER_PROMPTS,
            deployment="prompts",
            usual=_clients(2, 8),
            changed=_begins_anew,
        ),
        Injection(
            cause=Cause.GUARD,
            deployment="guarded",
            usual=_guarded,
            changed=lambda by: _guarded(by, guarded_key),
            is_shaped_before=True,
        ),
        Injection(
            cause=Cause.SLOW_CLIENTS,
            deployment="readers",
            usual=_clients(4, 32, window=16),
            changed=lambda by: Habits(
                clients=4,
                tokens=32,
                window=16,
                pause_seconds=min(1.5 * by.seconds, 0.6 * STALL_SECONDS),
                acknowledge_every=8,
            ),
        ),
        Injection(
            cause=Cause.NETWORK_TIMEOUTS,
            deployment="network",
            usual=_clients(6, 24, window=16),
            changed=_clients(6, 24, window=16, is_dark=lambda number: number % 2 == 0),
            timeouts=4,
        ),
        Injection(
            cause=Cause.NO_WORKER,
            deployment="stopped",
            usual=_clients(4),
            begin=acts.worker_stops,
            finish=acts.worker_starts,
            lets_through=False,
        ),
        Injection(
            cause=Cause.MEMORY_FULL,
            deployment="memory",
            usual=_clients(4, 48),
            changed=lambda by: Habits(clients=by.clients(ROOM, _stream_seconds(48)), tokens=48),
        ),
        Injection(
            cause=Cause.THROUGHPUT_SWINGS,
            deployment="swings",
            usual=_clients(3, 40),
            begin=acts.engine_stutters_at_times,
            finish=acts.hiccups_end,
            slots=7,
        ),
        Injection(
            cause=Cause.MODEL_NOT_UNLOADED,
            deployment="crowded",
            usual=_clients(3, 40),
            begin=acts.gpu_fills,
            finish=acts.gpu_empties,
            beside=(acts.UNUSED,),
        ),
    ]
