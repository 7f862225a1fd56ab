"""ASGI lifespan: the application's own start before the first connection, and its end after the last."""

import asyncio
import logging
from typing import Any

from headrace.server.exchange import Application, Message

logger = logging.getLogger(__name__)


class StartupFailedError(Exception):
    """The application answered `lifespan.startup.failed`; the message is its own."""


class Lifespan:
    """The lifespan call of the application. An application that does not speak the protocol is served all the same."""

    def __init__(self, application: Application, state: dict[str, Any]) -> None:
        self._application = application
        self._state = state
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Runs the application's startup.

        Raises:
            StartupFailedError: The application cannot start.
        """
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        self._task = asyncio.create_task(self._run(scope))
        await self._say("startup")

    async def shutdown(self) -> None:
        """Runs the application's shutdown, if it had a startup."""
        if self._task is not None and not self._task.done():
            await self._say("shutdown")

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._application(scope, self._inbox.get, self._answers.put)
        except Exception as error:  # noqa: BLE001  # how an application says that it has no lifespan
            logger.info("The application has no lifespan: %r", error)
        finally:
            self._answers.put_nowait({"type": "lifespan.ended"})

    async def _say(self, event: str) -> None:
        self._inbox.put_nowait({"type": f"lifespan.{event}"})
        answer = await self._answers.get()
        if answer["type"] == "lifespan.startup.failed":
            raise StartupFailedError(answer.get("message", "no reason given"))
        if answer["type"] == "lifespan.shutdown.failed":
            logger.error("The application's shutdown failed: %s", answer.get("message", "no reason given"))
