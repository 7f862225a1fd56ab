"""Which deployment a request is admitted to: the one that it names, or that one's fallback while its breaker is open.

Not among the package's names: `latency_reading` needs the package.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from apps.streams import metrics
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.latency_reading import Part, part_of, refusals_counted, series_of
from apps.streams.services.started import StartedStream
from headrace_wire.errors import ServerOverloadedError
from headrace_wire.latency.measures import Tally
from headrace_wire.snapshot import DeploymentConfig


class Route(Struct, frozen=True):
    """Where a request goes."""

    deployment: DeploymentConfig
    """Whose limits, prices, tokenizer and guardrails hold, and which the ledger names."""
    stands_in_for: DeploymentConfig | None = None
    """What was asked for, where it is another one."""
    is_try: bool = False
    """Its breaker is half open: how the request ends decides what becomes of it."""
    only_kept: Callable[[], ServerOverloadedError] | None = None
    """Its breaker is open and nothing stands in for it: see `StreamOptions`."""


def stream_route(*, gateway: Gateway, caller: Caller, model: str) -> Route:
    """Decide once, before anything is done for the request; nothing waits.

    A fallback whose own breaker is open is no fallback, and has none: there is one hop at most.

    Raises:
        ModelNotFoundError: the caller has no such model.
        ServerOverloadedError: its breaker is open, nothing stands in for it, and no answers are kept.
    """
    breakers = gateway.breakers
    asked = gateway.config.deployment(caller, model)
    if breakers.admits(asked):
        return Route(asked, is_try=not breakers.is_closed(asked))
    fallback = gateway.config.fallback_of(caller, asked)
    key = series_of(caller, asked.name)
    if fallback is not None and breakers.admits(fallback):
        breakers.turned_away(asked)
        metrics.REQUESTS_DIVERTED.labels(asked.name, fallback.name).inc()
        gateway.latencies.summary(key).count(Tally.DIVERTED)
        return Route(fallback, stands_in_for=asked, is_try=not breakers.is_closed(fallback))
    if fallback is not None:
        breakers.turned_away(fallback)
    if gateway.config.response_cache(caller, asked) is not None:
        return Route(asked, only_kept=partial(_turned_away, gateway, caller, asked))
    with refusals_counted(gateway.latencies, key):
        raise _turned_away(gateway, caller, asked)


def _turned_away(gateway: Gateway, caller: Caller, deployment: DeploymentConfig) -> ServerOverloadedError:
    """Count a request that nobody serves; return what its caller is told."""
    gateway.breakers.turned_away(deployment)
    metrics.REQUESTS_BROKEN_OFF.labels(deployment.name).inc()
    gateway.latencies.summary(series_of(caller, deployment.name)).count(Tally.TURNED_AWAY)
    return ServerOverloadedError(
        f"`{deployment.public_name}` fails its requests or has no worker, and takes none for a while; try again later.",
        retry_after_seconds=max(1.0, gateway.breakers.retry_after_seconds(deployment.name)),
    )


@contextmanager
def try_kept(gateway: Gateway, route: Route) -> Iterator[None]:
    """Start the route's stream within this: one that is refused, or given up, has tried nothing."""
    try:
        yield
    except BaseException:
        if route.is_try:
            gateway.breakers.give_back(route.deployment)
        raise


def try_noted(gateway: Gateway, route: Route, started: StartedStream) -> None:
    """Tell of the stream: one that no worker computes for its caller, but was kept or is shared, tries nothing."""
    if not route.is_try:
        return
    if part_of(started) is Part.OWN:
        gateway.breakers.trying(route.deployment, started.stream_id)
    else:
        gateway.breakers.give_back(route.deployment)
