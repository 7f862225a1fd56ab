"""Interleaved rounds: each measures all arms, the direct one first and last; disturbed ones do not count."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from msgspec import Struct

from tests.load.measurements import median_of
from tests.load.peers.arms import DIRECT, running_arms
from tests.load.peers.environments import Progress
from tests.load.peers.token_path import PathFigures, PathLoad, measure
from tests.load.placement import Placement, kept_awake

MOST_DRIFT = 0.2
"""Between the direct arm's two passes of a round: what a token costs the load's core, what a plain answer takes."""
MOST_LOAD_CORE = 0.8
MOST_OTHERS = 0.25
"""Cores that other processes of the machine use."""
EXTRA_ROUNDS = 0.5
"""How many more rounds may be made in place of disturbed ones, for each that is wanted."""


class Round(Struct, frozen=True):
    """One round's passes."""

    baseline: list[PathFigures]
    """The direct arm, first and last."""
    arms: dict[str, PathFigures]
    """The others, by name."""
    disturbed: str = ""
    """Why it does not count; empty for one that does."""

    def figure(self, arm: str, of: Callable[[PathFigures], float]) -> float:
        """Returns an arm's figure, for the direct one the middle of its two passes; NaN where it was not measured."""
        passes = self.baseline if arm == DIRECT else [self.arms[arm]] if arm in self.arms else []
        return median_of(map(of, passes))

    def added(
        self, arm: str, of: Callable[[PathFigures], float], less: Callable[[PathFigures], float] | None = None
    ) -> float:
        """Returns by how much an arm's figure exceeds the direct arm's (or its figure `less`)."""
        return self.figure(arm, of) - self.figure(DIRECT, less or of)


def counting(rounds: Sequence[Round]) -> list[Round]:
    """Returns the rounds that were not disturbed; all, where none is left."""
    return [one for one in rounds if not one.disturbed] or list(rounds)


def run_rounds(
    load: PathLoad,
    names: Sequence[str],
    placement: Placement,
    *,
    rounds: int,
    progress: Progress,
    title: str,
    side: Sequence[str] = (),
    side_rounds: int = 0,
    has_time_for: Callable[[float], bool] = lambda _seconds: True,
) -> list[Round]:
    """Measures arms until as many rounds count, too many did not, or there is no time for another one.

    The direct arm's last pass of a round is the first one of the next. The arms of `side` are in `side_rounds` of them.
    """
    done: list[Round] = []
    most = int(rounds * (1 + EXTRA_ROUNDS))
    with (
        kept_awake(placement.system, placement.load) as awake,
        running_arms([*names, *side], load.engine, placement, progress=progress) as (direct, *others),
    ):
        slowest = 0.0
        while (count := sum(not one.disturbed for one in done)) < rounds and len(done) < most:
            if done and not has_time_for(slowest):
                progress(f"{title}: no time for another round")
                break
            began = monotonic()
            wanted = [arm for arm in others if arm.name not in side or count < side_rounds]
            seen = [done[-1].baseline[-1]] if done and not done[-1].disturbed else []
            order = [*([] if seen else [direct]), *(wanted if len(done) % 2 == 0 else wanted[::-1]), direct]
            for arm in order:
                progress(f"{title}, round {len(done) + 1}, {count} of {rounds} count so far: {arm.name}")
                seen.append(asyncio.run(measure(load, arm, awake)))
            done.append(_round(seen))
            slowest = max(slowest, monotonic() - began)
            if done[-1].disturbed:
                progress(f"{title}: this round does not count, {done[-1].disturbed}")
    return done


def _apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other) - 1


def _round(seen: list[PathFigures]) -> Round:
    first, *arms, last = seen
    costs = _apart(first.load_us_per_token, last.load_us_per_token)
    drift = max(costs, _apart(first.plain.p50, last.plain.p50)) if first.plain.count else costs
    busy = max(seen, key=lambda one: one.load_core_busy)
    beside = max(seen, key=lambda one: one.others_busy)
    disturbed = ""
    if drift > MOST_DRIFT:
        disturbed = f"the baseline drifted by {drift:.0%}"
    elif busy.load_core_busy > MOST_LOAD_CORE:
        disturbed = f"the load's core was {busy.load_core_busy:.0%} busy ({busy.arm})"
    elif beside.others_busy > MOST_OTHERS:
        disturbed = f"other processes used {beside.others_busy:.1f} cores ({beside.arm})"
    return Round([first, last], {one.arm: one for one in arms}, disturbed)
