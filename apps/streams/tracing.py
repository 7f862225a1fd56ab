"""Traces of requests, for whoever collects them by OTLP: a span for each, and one for each of its phases.

Names follow OpenTelemetry's conventions for generative AI. Nothing is done per token: the phases are drawn at the end,
from the durations that the log has. No text of prompt or answer is in a span, whatever a tenant's retention says.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from apps.streams.traces import AnswerTold, Trace, trace_kept
from headrace_wire.errors import HeadraceError, ServerError
from headrace_wire.messages import SamplingParams

TRACEPARENT = b"traceparent"
"""The header by which a caller names its own span (W3C Trace Context). `tracestate` is not taken: it is free text."""

PROVIDER = "headrace"
_END_SECONDS = 5.0
"""How long the last spans may take to reach the collector."""
_NANOSECONDS = 1_000_000_000

_propagator = TraceContextTextMapPropagator()


class RequestTrace:
    """The span of one request. Times are kept by `time.perf_counter()`, and put on the clock once."""

    def __init__(self, tracer: Tracer, span: Span, *, began_at: float, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._began_at, self._began_ns = began_at, began_ns
        self._admitted_at = began_at

    @property
    def traceparent(self) -> str:
        """What the next process is told of it."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def admitted(self, stream_id: str) -> None:
        """Note that the request has become a stream; it waits from now on."""
        self._admitted_at = time.perf_counter()
        self._span.set_attributes({"gen_ai.response.id": stream_id, "headrace.stream_id": stream_id})

    def answered(self, answer: AnswerTold) -> None:
        """Note how the answer ended, and draw the phases that it had."""
        span, ended = self._span, answer.ended
        span.set_attribute("headrace.transport", answer.transport)
        if answer.ttft_seconds is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", answer.ttft_seconds)
        if ended is None:
            span.set_attribute("headrace.state", "left")
            return
        usage, timings = ended.usage, ended.timings
        span.set_attributes(
            {
                "headrace.state": ended.state.value,
                "gen_ai.response.finish_reasons": [ended.finish_reason.value],
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            }
        )
        if ended.error is not None:
            self._failed(ended.error.code, is_ours=ended.finish_reason.value == "error")
        at = self._admitted_at
        at = self._phase("queue", at, answer.queue_seconds or timings.queue_time)
        at = self._phase("prefill", at, timings.prefill_time)
        self._phase("guard", at, timings.guard_time)
        self._phase("decode", at, timings.decode_time)

    def refused(self, error: HeadraceError) -> None:
        """Note that the request failed."""
        self._failed(error.code, is_ours=isinstance(error, ServerError))

    def end(self) -> None:
        """Hand the span to the collector's queue; call once."""
        self._span.end(self._clock(time.perf_counter()))

    def _failed(self, code: str, *, is_ours: bool) -> None:
        self._span.set_attribute("error.type", code)
        if is_ours:
            self._span.set_status(StatusCode.ERROR, code)

    def _phase(self, name: str, began_at: float, seconds: float) -> float:
        """Draw a phase; return when it was over."""
        if seconds > 0:
            parent = set_span_in_context(self._span)
            phase = self._tracer.start_span(name, parent, SpanKind.INTERNAL, start_time=self._clock(began_at))
            phase.end(self._clock(began_at + seconds))
        return began_at + seconds

    def _clock(self, moment: float) -> int:
        return self._began_ns + round((moment - self._began_at) * _NANOSECONDS)


class OtlpTraces:
    """The spans of this process."""

    def __init__(self, instance: str) -> None:
        """Where and how spans go is read by the SDK from `OTEL_*` of the environment, as everywhere."""
        resource = Resource.create({"service.name": PROVIDER, "service.instance.id": instance})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

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
        return trace_kept(
            self.begin(headers, model=model, tenant_id=tenant_id, sampling=sampling, arrived_at=arrived_at)
        )

    async def close(self) -> None:
        """Send what is left, within a few seconds."""
        await asyncio.wait([asyncio.create_task(asyncio.to_thread(self._provider.shutdown))], timeout=_END_SECONDS)

    def begin(
        self,
        headers: Mapping[bytes, bytes],
        *,
        model: str,
        tenant_id: str,
        sampling: SamplingParams,
        arrived_at: float,
    ) -> RequestTrace:
        """Begin a span that the caller ends."""
        tracer = self._provider.get_tracer("headrace.gateway")
        began_ns = time.time_ns() - round((time.perf_counter() - arrived_at) * _NANOSECONDS)
        span = tracer.start_span(
            f"chat {model}",
            _parent(headers),
            SpanKind.SERVER,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "headrace.tenant_id": tenant_id,
            },
            start_time=began_ns,
        )
        return RequestTrace(tracer, span, began_at=arrived_at, began_ns=began_ns)


def _parent(headers: Mapping[bytes, bytes]) -> Context:
    named = headers.get(TRACEPARENT, b"").decode("latin-1")
    return _propagator.extract({"traceparent": named}, Context())
