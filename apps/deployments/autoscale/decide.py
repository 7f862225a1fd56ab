"""How many workers a deployment should have: a pure function.

A worker that sleeps is none: it does not count for any of this, and is woken before another one is started. While
nobody asks for anything it is left to sleep also where the fewest would be more, and goes with those that end.

Of its rules, the first that applies wins:

1. Bounds: below the fewest or above the most (or what a window of the schedule made of them): to the bound, at once.
2. Wake-up: no worker and somebody waits: one (or the fewest), at once.
3. Starting: workers that were asked for are not ready yet: no more are, until they are or took too long.
4. Cooldown after the last change.
5. Scale out: the highest share stayed above the threshold for the whole time, all of it after the last change.
6. Idle: nothing ran, waited or came for the whole time, and the fewest is none: none.
7. Scale in: shares stayed below the lower threshold for the whole time, and with fewer workers they would stay below
   the upper one, so that no decision undoes another while the load stays as it is.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from apps.deployments.autoscale.loads import Loads, loads_of
from apps.deployments.autoscale.schedules import Bounds, bounds_at
from apps.deployments.autoscale.terms import Decision, PolicyTerms, Rule, Sample, ScalingState

COVERED = 0.8
"""Share of a time's samples that must be there: a lost one changes nothing, a long silence is no evidence."""


def decide(policy: PolicyTerms, samples: Sequence[Sample], now: datetime, state: ScalingState) -> Decision:
    """Returns what is to be done.

    `samples` are in order and end at or before `now`; older ones than are needed may be among them.
    """
    return _Case(policy, samples, now, state).decision()


def samples_needed(policy: PolicyTerms) -> timedelta:
    """Returns how far back `decide` looks."""
    longest = max(policy.scale_out_seconds, policy.scale_in_seconds, policy.idle_seconds)
    return timedelta(seconds=longest + 2 * policy.tick_seconds)


class _Case:
    """One decision in the making."""

    def __init__(self, policy: PolicyTerms, samples: Sequence[Sample], now: datetime, state: ScalingState) -> None:
        self.policy = policy
        self.samples = samples
        self.now = now
        self.state = state
        self.last = samples[-1] if samples else None
        self.bounds: Bounds = bounds_at(policy, now)
        self.loads = self._loads(self.last) if self.last else Loads()

    def decision(self) -> Decision:
        rules = (
            self._bound,
            self._wake_up,
            self._starting,
            self._cooldown,
            self._scale_out,
            self._idle,
            self._scale_in,
        )
        for rule in rules:
            found = rule()
            if found is not None:
                return found
        return self._keep(Rule.KEEP, self._load_text())

    # ---- the rules

    def _bound(self) -> Decision | None:
        low, high = self.bounds.low, self.bounds.high
        moved = (low, high) != (self.policy.min_workers, self.policy.max_workers)
        current = self.state.current if self._is_used else self.state.current + self.state.sleeping
        if current < low:
            return self._to(low, Rule.SCHEDULE if moved else Rule.MINIMUM, f"There are to be at least {low}.")
        if self.state.current > high:
            return self._to(high, Rule.SCHEDULE if moved else Rule.MAXIMUM, f"There are to be at most {high}.")
        return None

    def _wake_up(self) -> Decision | None:
        if self.state.current > 0:
            return None
        if self.state.sleeping:  # and wakes by itself for whoever waits
            return None
        if self.last is not None and self.last.waiting:
            target = max(1, self.bounds.low)
            return self._to(target, Rule.WAKE_UP, f"No worker runs, and {self.last.waiting} wait for one.")
        return self._keep(Rule.KEEP, "No worker runs, and nobody waits.")

    def _starting(self) -> Decision | None:
        since = self._since_change()
        if not self.state.has_grown or since is None or since >= self.policy.start_seconds or self.last is None:
            return None
        if self.last.ready >= self.state.current:
            return None
        return self._keep(Rule.STARTING, f"{self.last.ready} of {self.state.current} workers are ready.")

    def _cooldown(self) -> Decision | None:
        since = self._since_change()
        if since is None or since >= self.policy.cooldown_seconds:
            return None
        left = self.policy.cooldown_seconds - since
        return self._keep(Rule.COOLDOWN, f"{left:.0f} s are left after the last change.")

    def _scale_out(self) -> Decision | None:
        policy, seconds = self.policy, self.policy.scale_out_seconds
        span = self._span(seconds)
        if span is None or self.state.current >= self.bounds.high:
            return None
        if any(self._loads(sample).out[1] <= policy.scale_out_share for sample in span):
            return None
        name, share = self.loads.out
        target = min(self.bounds.high, self.state.current + policy.scale_out_step)
        reason = f"Above {policy.scale_out_share:.0%} for {seconds:.0f} s, now {share:.0%} ({name})."
        return self._to(target, Rule.SCALE_OUT, reason)

    def _idle(self) -> Decision | None:
        if self.bounds.low > 0:
            return None
        span = self._span(self.policy.idle_seconds)
        if span is None or any(one.running or one.waiting or one.requests_per_second for one in span):
            return None
        return self._to(0, Rule.IDLE, f"Nobody has asked for anything for {self.policy.idle_seconds:.0f} s.")

    def _scale_in(self) -> Decision | None:
        policy, seconds = self.policy, self.policy.scale_in_seconds
        target = max(1, self.bounds.low, self.state.current - policy.scale_in_step)
        if target >= self.state.current:
            return None
        span = self._span(seconds)
        if span is None:
            return None
        for sample in span:
            loads = self._loads(sample)
            if loads.inwards >= policy.scale_in_share or loads.out[1] > policy.scale_out_share:
                return None
            if loads.inwards * self.state.current / target >= policy.scale_out_share:
                return None
        reason = f"Below {policy.scale_in_share:.0%} for {seconds:.0f} s, now {self.loads.inwards:.0%}."
        return self._to(target, Rule.SCALE_IN, reason)

    # ---- parts

    @property
    def _is_used(self) -> bool:
        last = self.last
        return last is not None and bool(last.running or last.waiting or last.requests_per_second)

    def _loads(self, sample: Sample) -> Loads:
        return loads_of(self.policy, sample, self.bounds.load_factor)

    def _since_change(self) -> float | None:
        return None if self.state.changed_at is None else (self.now - self.state.changed_at).total_seconds()

    def _span(self, seconds: float) -> list[Sample] | None:
        """Returns the samples of the last `seconds`.

        None where these do not all lie after the last change, or too few were taken.
        """
        since = self._since_change()
        if since is not None and since < seconds:
            return None
        begin = self.now - timedelta(seconds=seconds)
        span = [sample for sample in self.samples if sample.at >= begin]
        if not span or len(span) < COVERED * seconds / self.policy.tick_seconds:
            return None
        tick = timedelta(seconds=2 * self.policy.tick_seconds)
        return span if span[0].at - begin <= tick and self.now - span[-1].at <= tick else None

    def _load_text(self) -> str:
        if self.last is None:
            return "Nothing was measured yet."
        name, share = self.loads.out
        return f"The load is {share:.0%} ({name})." if name else "Nothing is known of the load."

    def _keep(self, rule: Rule, reason: str) -> Decision:
        return Decision(self.state.current, rule, reason, self._inputs())

    def _to(self, target: int, rule: Rule, reason: str) -> Decision:
        return Decision(target, rule, reason, self._inputs())

    def _inputs(self) -> dict[str, object]:
        known = {name: round(value, 4) for name, value in asdict(self.loads).items() if value is not None}
        last = self.last
        return {
            "current": self.state.current,
            "sleeping": self.state.sleeping,
            "bounds": [self.bounds.low, self.bounds.high],
            "window": self.bounds.window.kind.value if self.bounds.window else "",
            "loads": known,
            "ready": last.ready if last else 0,
            "running": last.running if last else 0,
            "waiting": last.waiting if last else 0,
            "requests_per_second": last.requests_per_second if last else None,
            "worker_capacity": last.worker_capacity if last else None,
            "samples": len(self.samples),
        }
