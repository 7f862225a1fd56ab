"""Ports for processes that say themselves where they listen."""

import socket


def free_port() -> int:
    """Returns a TCP port of loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
