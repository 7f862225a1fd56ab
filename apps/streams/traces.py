"""Whether requests are traced. The SDK is not even imported where nobody collects (`tracing` has what is done then)."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from headrace_wire.errors import HeadraceError
from headrace_wire.messages import Ended, SamplingParams


class AnswerTold(Protocol):
    """What is known of an answer at its end."""

    transport: str
    queue_seconds: float
    ttft_seconds: float | None
    ended: Ended | None


class Trace(Protocol):
    """One request's span."""

    @property
    def traceparent(self) -> str:
        """What the next process is told of it."""

    def admitted(self, stream_id: str) -> None:
        """Note that the request has become a stream."""

    def answered(self, answer: AnswerTold) -> None:
        """Note how the answer ended."""

    def refused(self, error: HeadraceError) -> None:
        """Note that the request failed."""

    def end(self) -> None:
        """Hand the span to the collector's queue; call once."""


class Traces(Protocol):
    """The spans of this process."""

    def request(
        self,
        headers: Mapping[bytes, bytes],
        *,
        model: str,
        tenant_id: str,
        sampling: SamplingParams,
        arrived_at: float,
    ) -> AbstractContextManager[Trace]:
        """Have a span around a request; `headers` may name the caller's own span, whose child it is then."""

    def begin(
        self,
        headers: Mapping[bytes, bytes],
        *,
        model: str,
        tenant_id: str,
        sampling: SamplingParams,
        arrived_at: float,
    ) -> Trace:
        """Begin a span as `request` does, of a request that somebody else sees the end of: that one ends it."""

    async def close(self) -> None:
        """Send what is left."""


class Untraced:
    """Takes what a trace is told."""

    traceparent = ""

    def admitted(self, stream_id: str) -> None:
        """Forget it."""

    def answered(self, answer: AnswerTold) -> None:
        """Forget it."""

    def refused(self, error: HeadraceError) -> None:
        """Forget it."""

    def end(self) -> None:
        """Do nothing."""


UNTRACED = Untraced()


class NoTraces:
    """Nobody collects."""

    def request(self, headers: Mapping[bytes, bytes], **_: object) -> AbstractContextManager[Trace]:  # noqa: ARG002
        """Do nothing around a request."""
        return nullcontext(UNTRACED)

    def begin(self, headers: Mapping[bytes, bytes], **_: object) -> Trace:  # noqa: ARG002
        """Begin nothing."""
        return UNTRACED

    async def close(self) -> None:
        """Do nothing."""


@contextmanager
def trace_begun(trace: Trace) -> Iterator[Trace]:
    """End the trace of a request that fails within this; of any other, somebody else sees the end."""
    try:
        yield trace
    except BaseException as error:
        if isinstance(error, HeadraceError):
            trace.refused(error)
        trace.end()
        raise


@contextmanager
def trace_kept(trace: Trace) -> Iterator[Trace]:
    """End the trace after this, however that goes."""
    with trace_begun(trace):
        yield trace
    trace.end()


def traces_begin(instance: str, *, is_on: bool) -> Traces:
    """Return the traces of a process that calls itself `instance`."""
    if not is_on:
        return NoTraces()
    from apps.streams.tracing import OtlpTraces  # noqa: PLC0415  half a second and 20 MB, only where it is wanted

    return OtlpTraces(instance)
