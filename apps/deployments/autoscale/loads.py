"""A sample as shares of what the workers can do: 1 is full."""

from dataclasses import asdict, dataclass

from apps.deployments.autoscale.terms import PolicyTerms, Sample


@dataclass(frozen=True, slots=True)
class Loads:
    """By signal; None where it does not count or is not known."""

    requests: float | None = None
    """Requests per second of what the workers serve, or places that are taken, whichever is more."""
    queue: float | None = None
    ttft: float | None = None
    kv: float | None = None

    @property
    def out(self) -> tuple[str, float]:
        """The signal that is highest, and its share; what scaling out goes by."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return max(known.items(), key=lambda item: item[1]) if known else ("", 0.0)

    @property
    def inwards(self) -> float:
        """The highest share of those that fall to nothing without load; a first token always takes some time."""
        return max((value for value in (self.requests, self.queue, self.kv) if value is not None), default=0.0)


def loads_of(policy: PolicyTerms, sample: Sample, factor: float = 1.0) -> Loads:
    """Returns the shares; `factor` is how many times the load counts."""
    capacity = policy.worker_requests_per_second or sample.worker_capacity or 0.0
    # Long answers run on when nothing comes any more, so what is taken counts beside what comes.
    shares = [(sample.running + sample.waiting) / sample.places] if sample.places else []
    if sample.ready and capacity and sample.requests_per_second is not None:
        shares.append(sample.requests_per_second / (capacity * sample.ready))
    requests = max(shares, default=None)
    expected = sample.waiting / (capacity * sample.ready) if sample.ready and capacity else 0.0
    # Who waits still is in no percentile yet.
    queue = max(sample.queue_p95 or 0.0, expected) / policy.queue_goal_seconds if policy.queue_goal_seconds else None
    ttft = sample.ttft_p95 / policy.ttft_goal_seconds if policy.ttft_goal_seconds and sample.ttft_p95 else None
    return Loads(
        *(None if share is None else share * factor for share in (requests, queue, ttft, sample.kv_usage)),
    )
