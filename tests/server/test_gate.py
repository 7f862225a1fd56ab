"""The two places where an application waits: for room to send, and for a message."""

import asyncio
from typing import Any, cast

import pytest

from headrace.server.exchange import Inbox
from headrace.server.flow_control import WriteGate
from headrace.server.transport import GatewayTransport


async def test_every_sender_goes_on_when_the_buffer_is_empty() -> None:
    gate = WriteGate()
    gate.pauseProducing()
    senders = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    senders[1].cancel()
    await asyncio.sleep(0)
    assert [sender.done() for sender in senders] == [False, True, False]
    gate.resumeProducing()
    await asyncio.gather(senders[0], senders[2])


async def test_the_end_of_the_connection_wakes_the_senders() -> None:
    gate = WriteGate()
    gate.pauseProducing()
    sender = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    gate.stopProducing()
    await sender
    gate.pauseProducing()
    await gate.wait()
    assert gate.ended


class Reading:
    """Stands where the socket is: notes whether it is read."""

    def __init__(self) -> None:
        self.paused = False

    def pauseProducing(self) -> None:  # noqa: N802  # Twisted's name
        self.paused = True

    def resumeProducing(self) -> None:  # noqa: N802  # Twisted's name
        self.paused = False


def _inbox(limit: int) -> tuple[Inbox, Reading]:
    reading = Reading()
    return Inbox(cast("GatewayTransport", reading), limit), reading


def _message(number: int) -> dict[str, Any]:
    return {"type": "websocket.receive", "number": number}


async def test_reading_pauses_at_the_limit_and_resumes_at_half() -> None:
    inbox, reading = _inbox(4)
    paused = []
    for number in range(4):
        inbox.put_nowait(_message(number))
        paused.append(reading.paused)
    assert paused == [False, False, False, True]
    assert [(await inbox.receive())["number"] for _ in range(2)] == [0, 1]
    assert not reading.paused


async def test_a_cancelled_receiver_takes_no_message_with_it() -> None:
    inbox, _ = _inbox(4)
    first = asyncio.create_task(inbox.receive())
    second = asyncio.create_task(inbox.receive())
    await asyncio.sleep(0)
    inbox.put_nowait(_message(0))
    first.cancel()
    assert (await second)["number"] == 0
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_the_inbox_knows_whether_the_application_was_told() -> None:
    inbox, _ = _inbox(4)
    inbox.put_nowait({"type": "http.disconnect"})
    assert not inbox.told_disconnect
    inbox, _ = _inbox(4)
    receiver = asyncio.create_task(inbox.receive())
    await asyncio.sleep(0)
    inbox.put_nowait({"type": "http.disconnect"})
    assert inbox.told_disconnect
    await receiver


async def test_the_clients_end_can_be_read_again() -> None:
    inbox, _ = _inbox(4)
    inbox.put_nowait(_message(0))
    inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
    received = [(await inbox.receive())["type"] for _ in range(4)]
    assert received == ["websocket.receive", *["websocket.disconnect"] * 3]
