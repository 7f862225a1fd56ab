"""A collector of spans, as far as tests need one: OTLP over HTTP, kept in memory."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 120.0


class Collector:
    """What was sent to it, as bytes and as spans."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._came = threading.Condition()
        self.url = ""

    @property
    def spans(self) -> list[Span]:
        """Return all spans so far."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        scopes = [scope for one in requests for resource in one.resource_spans for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def wait_for(self, wanted: Callable[[Span], bool]) -> Span:
        """Return the newest span that is wanted, once there is one."""
        found: list[Span] = []

        def look() -> bool:
            found[:] = [span for span in self.spans if wanted(span)]
            return bool(found)

        with self._came:
            assert self._came.wait_for(look, WAIT_SECONDS), [span.name for span in self.spans]
        return found[-1]

    def take(self, body: bytes) -> None:
        """Keep one export."""
        with self._came:
            self.bodies.append(body)
            self._came.notify_all()


def attributes(span: Span) -> dict[str, object]:
    """Return a span's attributes as Python has them."""
    found: dict[str, object] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind or "string_value")
        found[pair.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Listen on a free port of the loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
