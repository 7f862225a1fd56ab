"""Names of Daphne, Twisted and autobahn that this package uses although they are private or undocumented.

All of them, so that an upgrade of one of the three fails in one test with a list, and not in production with a riddle.
"""

import inspect
from typing import Any

from autobahn.twisted.websocket import WebSocketServerProtocol
from autobahn.websocket.protocol import WebSocketProtocol as AutobahnProtocol
from daphne.http_protocol import WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet.abstract import FileDescriptor
from twisted.internet.tcp import Connection, Port
from twisted.web.http import HTTPChannel, Request
from twisted.web.http_headers import Headers

BORROWED: dict[type[Any], tuple[str, ...]] = {
    FileDescriptor: (
        "_tempDataLen",
        "_writeDisconnecting",
        "dataBuffer",
        "disconnecting",
        "doWrite",
        "offset",
        "startWriting",
        "stopWriting",
        "writeSomeData",
    ),
    Connection: ("_dataReceived", "doRead", "socket"),
    Port: ("socket", "startListening", "transport"),
    HTTPChannel: (
        "_path",
        "_receivedHeaderCount",
        "_receivedHeaderSize",
        "_respondToBadRequestAndDisconnect",
        "allContentReceived",
        "allHeadersReceived",
        "maxHeaders",
        "persistent",
        "requestDone",
        "requestFactory",
        "totalHeadersSize",
        "writeHeaders",
    ),
    Headers: ("_rawHeaders",),
    Request: ("chunked", "finish", "finished", "gotLength", "handleContentChunk", "startedWriting", "write"),
    WebRequest: (
        "_response_started",
        "application_queue",
        "basic_error",
        "finish",
        "handle_reply",
        "process",
        "send_disconnect",
    ),
    Server: ("check_headers_type", "create_application", "protocol_connected", "protocol_disconnected", "server_name"),
    WebSocketProtocol: ("handshake_deferred", "muted", "serverReject"),
    WebSocketServerProtocol: ("_dataReceived", "websocket_protocols"),
    AutobahnProtocol: (
        "closeHandshakeTimeout",
        "dropConnection",
        "failByDrop",
        "failedByMe",
        "sendCloseFrame",
    ),
}


def missing_names() -> list[str]:
    """Returns the borrowed names that are no longer there, as `module.Class.name`."""
    return [
        f"{cls.__module__}.{cls.__qualname__}.{name}"
        for cls, names in BORROWED.items()
        for name in names
        if not _has(cls, name)
    ]


def _has(cls: type[Any], name: str) -> bool:
    """Attributes that exist on instances only are looked up in the source."""
    return hasattr(cls, name) or any(f".{name}" in inspect.getsource(base) for base in cls.__mro__[:-1])
