"""Reads what is known of two times and has them compared: for the page, its panel, and whoever else asks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import fmean

from django.db.models import Q
from django.utils import timezone

from apps.deployments.enums import WorkerState
from apps.deployments.models import Worker
from apps.ops.diagnosis.causes import FULL, Finding
from apps.ops.diagnosis.diagnose import diagnose
from apps.ops.diagnosis.movements import Movement, in_words, movements
from apps.ops.diagnosis.observations import Fleet, Observation
from apps.ops.latency.goals import Goal, goals_for
from apps.ops.latency.samples import fleet_states
from apps.ops.latency.scopes import FleetPoint, LatencyScope, TimeRange
from apps.ops.latency.selectors import fleet_series, latency_total
from headrace_wire.latency.measures import PHASES, Tally
from headrace_wire.latency.store import READABLE_SECONDS, SLOT_SECONDS

MOST_SAMPLES = 30
"""Looked at for how full memory was."""
LEAST_RUNNING = 0.5
"""Where less was running, its pace is not known."""
LONGEST_START = timedelta(hours=1)
"""A worker that takes longer to load is not seen as one that has just started."""


@dataclass(frozen=True, slots=True)
class GoalState:
    """A goal, and what was reached."""

    goal: Goal
    seconds: float

    @property
    def says(self) -> str:
        """For people."""
        name = self.goal.measure.value
        return f"{name.upper() if len(name) <= 4 else name.capitalize()} p{self.goal.quantile * 100:g}"

    @property
    def words(self) -> tuple[str, str]:
        """What was reached, and the goal, for people."""
        return in_words(self.seconds), in_words(self.goal.seconds)

    @property
    def is_met(self) -> bool:
        """Whether it was reached; where nothing was measured nothing was missed."""
        return self.seconds <= self.goal.seconds


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One deployment's two times, compared."""

    deployment: str
    goals: tuple[GoalState, ...]
    moved: tuple[Movement, ...]
    findings: tuple[Finding, ...]
    requests: int
    requests_before: int

    @property
    def is_fine(self) -> bool:
        """Whether all goals were met and nothing has a cause."""
        return not (self.findings or self.missed)

    @property
    def measured_goals(self) -> tuple[GoalState, ...]:
        """The goals of which something is known: without requests, none is."""
        return self.goals if self.requests else ()

    @property
    def missed(self) -> tuple[GoalState, ...]:
        """The goals that were left."""
        return tuple(state for state in self.goals if not state.is_met)

    @property
    def phase(self) -> str:
        """The phase of the first token that moved most, for people; empty where none did."""
        return next((one.measure.capitalize() for one in self.moved if one.measure in PHASES), "")


def diagnosis_of(deployment: str, shown: TimeRange, before: TimeRange) -> Diagnosis:
    """Compares two times of a deployment.

    Raises:
        redis.exceptions.RedisError: A time reaches beyond what the database has, and Redis does not answer.
    """
    now, then = observation_of(deployment, shown), observation_of(deployment, before)
    goals = (GoalState(goal, now.quantile(goal.measure, goal.quantile)) for goal in goals_for(deployment))
    moved = sorted(movements(now, then).values(), key=lambda movement: -movement.share)
    return Diagnosis(deployment, tuple(goals), tuple(moved), tuple(diagnose(now, then)), now.requests, then.requests)


def observation_of(deployment: str, time_range: TimeRange) -> Observation:
    """Reads one time of a deployment.

    Raises:
        redis.exceptions.RedisError: As `diagnosis_of`.
    """
    scope = LatencyScope(deployment=deployment)
    points = fleet_series(scope, time_range)
    return Observation(
        seconds=_seconds(time_range),
        summary=latency_total(scope, time_range),
        fleet=_fleet(deployment, time_range, points),
    )


def _fleet(deployment: str, time_range: TimeRange, points: Sequence[FleetPoint]) -> Fleet:
    lives = list(
        Worker.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=time_range.start)).filter(
            deployment_name=deployment, started_at__lt=time_range.end
        )
    )
    workers = _mean(point.workers for point in points)
    places = _mean(float(life.max_num_seqs) for life in lives if life.max_num_seqs)
    memory_usage = _memory_usage(deployment, time_range)
    preemptions = _mean_known(point.preemptions for point in points)
    gpu_memory_usage = max(_known(point.gpu_memory_usage_most for point in points), default=None)
    is_full = max(memory_usage or 0.0, gpu_memory_usage or 0.0) >= FULL
    return Fleet(
        workers=workers,
        workers_started=sum(_started_in(life, time_range) for life in lives),
        slots=workers * places,
        running=_mean(point.running for point in points),
        held=_mean(point.held for point in points),
        spilled=_mean(point.spilled for point in points),
        waiting=_mean(point.waiting for point in points),
        waiting_most=max((point.waiting_most for point in points), default=0.0),
        kv_cache_usage_most=max((point.kv_cache_usage_most for point in points), default=0.0),
        preemptions=None if preemptions is None else preemptions * _seconds(time_range),
        memory_usage=memory_usage,
        gpu_memory_usage=gpu_memory_usage,
        unused_models=_unused(deployment, lives, time_range) if is_full else (),
        gpu_clock_mhz=_mean_known(point.gpu_clock_mhz for point in points),
        paces=tuple(_paces(points)),
    )


def _memory_usage(deployment: str, time_range: TimeRange) -> float | None:
    """The most there was; None of what was before the samples that are kept."""
    start = max(time_range.start, timezone.now() - timedelta(seconds=READABLE_SECONDS))
    slots = (time_range.end - start) // timedelta(seconds=SLOT_SECONDS)
    states = fleet_states(start, time_range.end, every=max(1, slots // MOST_SAMPLES)) if slots > 0 else ()
    workers = (worker for state in states for worker in state.workers if worker.deployment == deployment)
    return max((worker.memory_usage for worker in workers if worker.memory_usage), default=None)


def _paces(points: Sequence[FleetPoint]) -> Iterator[float]:
    """Yields tokens per second of a running request: tokens are those since the point before, so both count."""
    for before, point in pairwise(points):
        running = (before.running + point.running) / 2
        if running >= LEAST_RUNNING:
            yield point.tokens / running


def _started_in(life: Worker, time_range: TimeRange) -> bool:
    """Whether it became ready in that time, or was still loading."""
    if life.state == WorkerState.BROKEN or life.started_at < time_range.start - LONGEST_START:
        return False
    is_loading = life.state == WorkerState.LOADING
    return is_loading or life.started_at + timedelta(seconds=life.cold_start_seconds) >= time_range.start


def _unused(deployment: str, lives: Sequence[Worker], time_range: TimeRange) -> tuple[str, ...]:
    """Other deployments on the same machines that were asked for nothing."""
    hosts = {life.host for life in lives}
    others = Worker.objects.filter(ended_at__isnull=True, host__in=hosts).exclude(deployment_name=deployment)
    names = sorted(set(others.values_list("deployment_name", flat=True)))
    return tuple(
        name for name in names if not latency_total(LatencyScope(deployment=name), time_range).tally(Tally.REQUESTS)
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else 0.0


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _seconds(time_range: TimeRange) -> float:
    return (time_range.end - time_range.start).total_seconds()
