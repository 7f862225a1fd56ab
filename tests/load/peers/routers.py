"""A router of the field before several endpoints of the simulated engine, each with a prefix cache of its own."""

import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from tests.load.peers.endpoint import HOST, LISTENING
from tests.load.peers.environments import SMG_ENVIRONMENT
from tests.load.placement import Placement, on_core
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port


class RoutedEndpoints(Struct, frozen=True):
    """A running router, and the endpoints behind it."""

    port: int
    endpoints: list[int]
    """Their ports."""

    def served(self) -> list[int]:
        """Returns how many tokens each endpoint has generated."""
        urls = [f"http://{HOST}:{port}/served" for port in self.endpoints]
        return [int(urllib.request.urlopen(url, timeout=10).read()) for url in urls]


@contextmanager
def running_smg(
    policy: str, engine: Mapping[str, float], placement: Placement, *, count: int
) -> Iterator[RoutedEndpoints]:
    """Starts endpoints of an engine with these options, and smg before them; returns when it has found all."""
    with ExitStack() as cleaning:
        ports = [free_port() for _ in range(count)]
        with on_core(placement.load):
            for port in ports:
                pairs = [text for name, value in engine.items() for text in (f"--{name}", str(value))]
                command = (sys.executable, "-m", "tests.load.peers.endpoint", "--port", str(port), *pairs)
                endpoint = Process(command, name="endpoint", environ=child_environment(), cwd=REPOSITORY_ROOT)
                cleaning.enter_context(endpoint).wait_for_line(LISTENING)
        listen, metrics = free_port(), free_port()
        options = ("--host", HOST, "--port", str(listen), "--prometheus-port", str(metrics), "--policy", policy)
        urls = [f"http://{HOST}:{port}" for port in ports]
        command = (str(SMG_ENVIRONMENT.program), "launch", *options, "--worker-urls", *urls)
        with on_core(placement.system):
            router = cleaning.enter_context(Process(command, name="smg", environ=child_environment()))
        router.wait_for_line("Activated 1 of 1", times=count, timeout=60)
        yield RoutedEndpoints(listen, ports)
