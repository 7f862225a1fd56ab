"""A webhook's receiver: a real HTTP server that answers as it is told and keeps what it got."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver(HTTPServer):
    """Answers with `statuses` one after another, then with 200; keeps silent for so many requests first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.url = f"http://127.0.0.1:{self.server_port}/hook"
        self.statuses: list[int] = []
        self.silent_for = 0
        self.taken: list[tuple[str, dict[str, str], bytes]] = []


class _Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.taken.append((self.path, headers, body))
        if self.server.silent_for:
            self.server.silent_for -= 1
            self.rfile.read(1)  # until the other one leaves
            return
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Serves on a free port."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
