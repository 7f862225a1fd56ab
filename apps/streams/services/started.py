"""What a caller may ask of a stream beside its request, and what it gets."""

from collections.abc import Callable

from msgspec import Struct

from apps.streams.limits import QueueNews
from apps.streams.services.response_caching import CacheOutcome
from apps.streams.services.static_requests import CacheControls
from apps.streams.subscription import Subscription
from headrace_wire.admission import Rates
from headrace_wire.errors import HeadraceError
from headrace_wire.request_queue import Idempotency
from headrace_wire.snapshot import DeploymentConfig


class StartedStream(Struct, frozen=True):
    """An admitted stream, and the subscription that its first reader follows."""

    stream_id: str
    deployment: DeploymentConfig
    place: QueueNews
    """Where it stands in the queue, and how long that may take."""
    queue_deadline_seconds: float
    subscription: Subscription
    created_at: int
    """Unix seconds at which it was asked for first."""
    rates: Rates = Rates()
    """What is left of the caller's rate limits."""
    guardrails: tuple[str, ...] = ()
    """Names of the policies that apply."""
    awaits_verdict: bool = False
    """The worker judges the request too: until it has, what was asked may still be refused."""
    cache: CacheOutcome = CacheOutcome()
    """What the response cache had to do with it."""
    is_shared: bool = False
    """Another caller has started it, and answers for its queue deadline."""
    is_replay: bool = False
    """The caller's idempotency key had started it before: the subscription gives it from its beginning."""


class StreamOptions(Struct, frozen=True):
    """What a caller may ask for beside its request."""

    stream_id: str | None = None
    """A new id that was made before (the chat stores it first)."""
    priority: int | None = None
    """In the fair queue, 0 first to 3; where the plan allows it. None for the plan's own."""
    window: int | None = None
    """Tokens that may be generated beyond the acknowledged ones; at most, and by default, the tenant's."""
    can_return: bool = True
    """Whether the caller has means to resume the stream."""
    idempotency: Idempotency | None = None
    """The caller's key: a stream that it started before is given again instead of a second one."""
    prompt_cache: str | None = None
    """Name of the tenant's prompt cache whose messages go before the caller's."""
    cache: CacheControls = CacheControls()
    """What the caller says about kept answers."""
    traceparent: str = ""
    """The request's span."""
    stands_in_for: DeploymentConfig | None = None
    """What was asked for, where the stream's deployment is only its fallback."""
    only_kept: Callable[[], HeadraceError] | None = None
    """Nothing may be computed: where there is no kept answer, it is called, and what it returns is raised."""
