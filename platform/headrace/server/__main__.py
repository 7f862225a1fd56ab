"""`python -m headrace.server`: config, startup, run, drain, shutdown."""

import asyncio
import gc
import importlib
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from daphne.server import twisted_loop  # first: it installs the asyncio reactor
from twisted.internet import reactor
from twisted.internet.error import CannotListenError

from headrace.env import Environment, InvalidEnvironmentError
from headrace.server import twisted_log
from headrace.server.config import ServerConfig
from headrace.server.drain import drain
from headrace.server.exchange import Application
from headrace.server.gateway import GatewayServer
from headrace.server.lifespan import Lifespan, StartupFailedError
from headrace.server.listener import raise_descriptor_limit
from headrace.server.liveness import watch_deadlines
from headrace.server.state import STATE_KEY, ServerState

logger = logging.getLogger("headrace.server")

_GC_THRESHOLDS = (10_000, 5, 20)
"""A full collection with 2,048 streams open takes 0.1 s, in which nothing else happens. By Python's own thresholds one
comes for every few hundred new streams, by these for every few thousand. Streams leave it nothing (measured)."""


def main(arguments: Sequence[str]) -> int:
    """Serves until a signal; returns the exit status."""
    try:
        environment = Environment.read()
        config = ServerConfig.from_arguments(arguments, host=environment.host, port=environment.port)
        application = _load(config.application)
    except InvalidEnvironmentError as error:
        print(error, file=sys.stderr)  # logging is not configured yet
        return 2
    logging.basicConfig(level=environment.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    twisted_log.forward_errors()
    raise_descriptor_limit()
    # What exists now stays: the collector need not look at it again while streams wait.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    return _run(_serve(application, config))


async def _serve(application: Application, config: ServerConfig) -> int:
    state = ServerState()
    server = GatewayServer(application, config, state)
    server.application_state[STATE_KEY] = state
    lifespan = Lifespan(application, server.application_state)
    stop, hurry = _signals()
    state.leave = stop.set
    try:
        await lifespan.startup()
        logger.info("Listening on %s port %d.", *server.listen())
    except (StartupFailedError, CannotListenError) as error:
        logger.error("The gateway cannot start: %s", error)  # noqa: TRY400  # the message is all there is to know
        await lifespan.shutdown()
        return 1
    async with watch_deadlines(server):
        await stop.wait()
        await drain(server, hurry)
    await lifespan.shutdown()
    return 0


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Returns an event for the first SIGTERM or SIGINT, and one for the second: the operator cannot wait."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def received() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received)
    return stop, hurry


def _load(path: str) -> Application:
    module, _, attribute = path.partition(":")
    return cast("Application", getattr(importlib.import_module(module), attribute or "application"))


def _run(serve: Coroutine[Any, Any, int]) -> int:
    """Runs the coroutine on the loop that Twisted's reactor runs on."""
    asyncio.set_event_loop(twisted_loop)
    task = twisted_loop.create_task(serve)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return int(task.result())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
