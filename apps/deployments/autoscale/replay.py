"""What a policy would have done with recorded samples.

The demand is taken as recorded: requests per second, and places that were taken. Waits are estimates: what comes beyond
what the workers of the replay serve waits, first come first served.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from apps.deployments.autoscale.decide import decide, samples_needed
from apps.deployments.autoscale.terms import Decision, PolicyTerms, Sample, ScalingState

START_SECONDS = 60.0
"""From asking for a worker until it serves, where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """One tick."""

    at: datetime
    recorded: int
    """Workers that there were."""
    workers: int
    """Workers that the policy would have had."""
    wait_seconds: float
    """Estimate of the wait in the queue."""
    load: float


@dataclass(slots=True)
class Replay:
    """All of it."""

    points: list[ReplayPoint] = field(default_factory=list)
    changes: list[tuple[datetime, int, Decision]] = field(default_factory=list)
    """When, workers before, what was decided."""
    worker_hours: float = 0.0
    recorded_hours: float = 0.0

    @property
    def longest_wait(self) -> float:
        """Estimate, in seconds."""
        return max((point.wait_seconds for point in self.points), default=0.0)


def replay(policy: PolicyTerms, samples: Sequence[Sample], *, start_seconds: float = START_SECONDS) -> Replay:
    """Runs a policy over samples in their order, from as many workers as there were."""
    run = _Run(policy, start_seconds, samples[0].workers if samples else 0)
    for before, sample in zip((None, *samples), samples, strict=False):
        run.step(sample, before)
    return run.result


class _Run:
    def __init__(self, policy: PolicyTerms, start_seconds: float, workers: int) -> None:
        self.policy = policy
        self.start = timedelta(seconds=start_seconds)
        self.state = ScalingState(current=workers)
        self.coming: list[tuple[datetime, int]] = []
        """Workers that were asked for, and when they serve."""
        self.recent: deque[Sample] = deque()
        self.backlog = 0.0
        self.capacity: float | None = None
        self.places = 0.0
        """Of one worker."""
        self.result = Replay()

    def step(self, sample: Sample, before: Sample | None) -> None:
        longest = timedelta(seconds=2 * self.policy.tick_seconds)  # what was not measured is not counted
        elapsed = min(sample.at - before.at, longest).total_seconds() if before else 0.0
        self.coming = [(at, count) for at, count in self.coming if at > sample.at]
        ready = max(0, self.state.current - sum(count for _, count in self.coming))
        seen = self._seen(sample, ready, elapsed)
        self.recent.append(seen)
        while self.recent[0].at < sample.at - samples_needed(self.policy):
            self.recent.popleft()
        decision = decide(self.policy, list(self.recent), sample.at, self.state)
        hours = elapsed / 3600
        self.result.worker_hours += hours * self.state.current
        self.result.recorded_hours += hours * sample.workers
        self._take(decision, sample)
        load = (
            max(decision.inputs["loads"].values(), default=0.0) if isinstance(decision.inputs["loads"], dict) else 0.0
        )
        point = ReplayPoint(sample.at, sample.workers, self.state.current, seen.queue_p95 or 0.0, load)
        self.result.points.append(point)

    def _take(self, decision: Decision, sample: Sample) -> None:
        before = self.state.current
        if decision.target == before:
            return
        self.result.changes.append((sample.at, before, decision))
        grown = decision.target > before
        if grown:
            self.coming.append((sample.at + self.start, decision.target - before))
        else:
            self.coming = []
        self.state = ScalingState(current=decision.target, changed_at=sample.at, has_grown=grown)

    def _seen(self, sample: Sample, ready: int, elapsed: float) -> Sample:
        """The sample as it would have been with `ready` workers."""
        if sample.ready:
            self.places = sample.places / sample.ready
        self.capacity = self.policy.worker_requests_per_second or sample.worker_capacity or self.capacity
        places = round(self.places * ready)
        if self.capacity and sample.requests_per_second is not None:
            serves = self.capacity * ready
            self.backlog = max(0.0, self.backlog + (sample.requests_per_second - serves) * elapsed)
            busy = min(places, sample.running + round(self.backlog))
        else:
            self.backlog = max(0.0, float(sample.running + sample.waiting - places))
            busy = min(places, sample.running + sample.waiting)
        wait = self.backlog / (self.capacity * ready) if self.capacity and ready else 0.0
        if not ready and sample.waiting + sample.running:
            self.backlog = max(self.backlog, 1.0)
        ttft = None if sample.ttft_p95 is None else max(0.0, sample.ttft_p95 - (sample.queue_p95 or 0.0)) + wait
        share = sample.ready / ready if ready else 0.0
        return replace(
            sample,
            workers=self.state.current,
            sleeping=0,  # the policy's workers end where recorded ones slept
            ready=ready,
            running=busy,
            waiting=round(self.backlog),
            places=places,
            worker_capacity=self.capacity,
            queue_p95=wait,
            ttft_p95=ttft,
            kv_usage=None if sample.kv_usage is None else min(1.0, sample.kv_usage * share),
        )
