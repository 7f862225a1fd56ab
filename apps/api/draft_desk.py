"""The drafts of one WebSocket: one at a time, the newest text wins, and a socket's frames never wait for one."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from apps.api.conversations import conversation_turns
from apps.api.protocol import DraftFrame, draft_off_frame, error_frame
from apps.api.requests import MAX_MESSAGES
from apps.streams.config_view import Caller
from apps.streams.drafts import DraftLine
from apps.streams.gateway import Gateway
from apps.streams.services import draft_prefill, draft_withdraw
from headrace_wire.errors import HeadraceError, InvalidRequestError, ServerError
from headrace_wire.messages import ChatTurn

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.2
"""Between two drafts of a connection; nobody types faster, and each carries its whole prefix to a worker."""


class _Wanted:
    """A draft to be computed; or, with no frame, the last one to be withdrawn."""

    def __init__(self, gateway: Gateway, caller: Caller, frame: DraftFrame | None) -> None:
        self.gateway = gateway
        self.caller = caller
        self.frame = frame


class DraftDesk:
    """Takes draft frames of one connection."""

    def __init__(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """`tell` sends a frame."""
        self._tell = tell
        self._line = DraftLine()
        self._last: _Wanted | None = None
        self._next: _Wanted | None = None
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, gateway: Gateway, caller: Caller, frame: DraftFrame) -> None:
        """Take a draft in the place of the one before; returns at once."""
        if not frame.text.strip():
            self.withdraw()
        else:
            self._last = self._next = _Wanted(gateway, caller, frame)
            self._go()

    def withdraw(self) -> None:
        """The draft was sent, or given up; returns at once."""
        if self._last is not None:
            self._next = _Wanted(self._last.gateway, self._last.caller, None)
            self._hurry.set()
            self._go()

    async def close(self) -> None:
        """The connection has ended: what was typed may still be sent over another one, but nobody waits for it."""
        self.withdraw()
        if self._task is not None:
            await self._task

    def _go(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="drafts")

    async def _work(self) -> None:
        while (wanted := self._next) is not None:
            self._next = None
            self._hurry.clear()
            if wanted.frame is None:
                await draft_withdraw(gateway=wanted.gateway, line=self._line)
                continue
            await self._draft(wanted, wanted.frame)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._hurry.wait()

    async def _draft(self, wanted: _Wanted, frame: DraftFrame) -> None:
        try:
            deployment = wanted.gateway.config.deployment(wanted.caller, frame.model)
            conversation = await _conversation(wanted.caller, frame)
            if conversation is None:
                return
            off = await draft_prefill(
                gateway=wanted.gateway,
                caller=wanted.caller,
                deployment=deployment,
                conversation=conversation,
                line=self._line,
            )
            if off is not None:
                await self._tell(draft_off_frame(off, ref=frame.ref))
        except HeadraceError as error:
            await self._tell(error_frame(error, ref=frame.ref))
        except Exception:
            log.exception("draft_failed")
            await self._tell(error_frame(ServerError("The server failed to take the draft."), ref=frame.ref))


async def _conversation(caller: Caller, frame: DraftFrame) -> list[ChatTurn] | None:
    if (frame.messages is None) == (frame.conversation is None):
        raise InvalidRequestError("A draft has `messages` or, in the chat, a `conversation`.", param="messages")
    if frame.conversation is not None:
        return await conversation_turns(caller, frame.conversation, frame.text)
    messages = frame.messages or []
    if len(messages) >= MAX_MESSAGES:
        raise InvalidRequestError(f"`messages` may hold at most {MAX_MESSAGES - 1} messages.", param="messages")
    return [*(message.turn(index) for index, message in enumerate(messages)), ChatTurn("user", frame.text)]
