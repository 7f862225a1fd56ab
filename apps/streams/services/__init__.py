"""What a gateway does to streams. The edges (HTTP, WebSocket, chat) parse, call one of these, and render."""

from apps.streams.services.drafting import draft_prefill, draft_withdraw
from apps.streams.services.ending import stream_cancel, stream_expire_in_queue
from apps.streams.services.reading import stream_attach, stream_find, stream_leave
from apps.streams.services.response_caching import CacheOutcome, CacheWord
from apps.streams.services.started import StartedStream, StreamOptions
from apps.streams.services.starting import stream_start
from apps.streams.services.static_requests import CacheControls

__all__ = [
    "CacheControls",
    "CacheOutcome",
    "CacheWord",
    "StartedStream",
    "StreamOptions",
    "draft_prefill",
    "draft_withdraw",
    "stream_attach",
    "stream_cancel",
    "stream_expire_in_queue",
    "stream_find",
    "stream_leave",
    "stream_start",
]
