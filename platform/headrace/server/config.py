"""What the server is told on its command line. Every limit and every deadline of the server has its default here."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Self, TypeVar

_Value = TypeVar("_Value")

KIB = 1024
MIB = 1024 * KIB


def _option(default: _Value, text: str) -> _Value:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of one server process; each is a command-line flag of the same name (`--drain-deadline-seconds 30`)."""

    host: str = _option("127.0.0.1", "address to listen on, IPv4 or IPv6")
    port: int = _option(8000, "port to listen on; 0 lets the system choose")
    application: str = _option("headrace.asgi:application", "ASGI application, module:attribute")
    backlog: int = _option(2048, "connections that may wait to be accepted; the kernel's somaxconn is the upper bound")
    max_connections: int = _option(10_000, "open connections; what comes above is answered with 503 and closed")

    max_body_bytes: int = _option(8 * MIB, "size of a request body; above it the answer is 413")
    header_timeout_seconds: float = _option(10.0, "from a request's first byte to the end of its head")
    body_timeout_seconds: float = _option(60.0, "from the end of a request's head to the end of its body")
    keep_alive_seconds: float = _option(75.0, "how long an idle connection is kept between requests")

    write_mark_bytes: int = _option(16 * KIB, "bytes in user space from which on send() waits")
    socket_send_buffer_bytes: int = _option(16 * KIB, "SO_SNDBUF of a connection that carries a stream")
    notsent_low_water_bytes: int = _option(8 * KIB, "TCP_NOTSENT_LOWAT of a connection that carries a stream")
    stall_timeout_seconds: float = _option(60.0, "how long a client may take nothing of what waits for it")

    handshake_timeout_seconds: float = _option(10.0, "from a WebSocket's request to the application's accept or close")
    max_message_bytes: int = _option(1 * MIB, "size of an inbound WebSocket message; above it the close code is 1009")
    inbox_messages: int = _option(64, "unread inbound WebSocket messages from which on reading pauses")
    ping_interval_seconds: float = _option(20.0, "silence of a WebSocket client after which it is pinged")
    ping_timeout_seconds: float = _option(60.0, "how long a ping that reached an idle client may stay unanswered")

    application_close_seconds: float = _option(10.0, "time of an application call to end after its client left")
    drain_notice_seconds: float = _option(0.0, "how long new connections are still taken after readiness has flipped")
    drain_deadline_seconds: float = _option(30.0, "time of running streams to end in a drain")
    drain_cut_notice_seconds: float = _option(2.0, "how long before the deadline the application is told to end them")
    drain_jitter_seconds: float = _option(5.0, "upper bound of the reconnect delay that is suggested to each client")

    @classmethod
    def from_arguments(cls, arguments: Sequence[str], *, host: str, port: int) -> Self:
        """Parses the command line; `host` and `port` are the defaults that the environment gives.

        Raises:
            SystemExit: An argument is unknown or out of range; the message went to stderr.
        """
        parser = argparse.ArgumentParser(prog="python -m headrace.server", description="The Headrace gateway.")
        for option in fields(cls):
            default = {"host": host, "port": port}.get(option.name, option.default)
            parser.add_argument(
                "--" + option.name.replace("_", "-"),
                type=type(option.default),
                default=default,
                help=f"{option.metadata['help']} (default: {default})",
            )
        values = vars(parser.parse_args(arguments))
        for name, value in values.items():
            if isinstance(value, int | float) and value < 0:
                parser.error(f"--{name.replace('_', '-')} cannot be negative")
        return cls(**values)
