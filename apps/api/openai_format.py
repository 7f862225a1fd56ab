"""Log entries as OpenAI's chat completion objects.

Chunks of one answer differ only in their text, so everything else is encoded once per answer.
"""

import msgspec

from headrace_wire.messages import Delta, Ended, FinishReason, Usage

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""Abort and error have no OpenAI word: they are errors, never a finish."""


def usage_object(usage: Usage) -> dict[str, object]:
    """Return OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def completion_id(stream_id: str) -> str:
    """Return the `id` that a client sees for a stream."""
    return f"chatcmpl-{stream_id.removeprefix('strm-')}"


class ChatChunks:
    """Server-sent events of one streamed answer."""

    def __init__(self, stream_id: str, model: str, *, include_usage: bool, created_at: int) -> None:
        """`created_at`: Unix seconds at which the stream was asked for first."""
        head = {
            "id": completion_id(stream_id),
            "object": "chat.completion.chunk",
            "created": created_at,
            "model": model,
        }
        self._include_usage = include_usage
        # `{...head` without its closing brace; with include_usage every chunk but the last says `usage: null`.
        self._head = b"data: " + _encode(head)[:-1] + (b',"usage":null' if include_usage else b"")
        self._delta = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._usage_head = b"data: " + _encode(head)[:-1]

    def first(self) -> bytes:
        """Return the chunk that carries the role."""
        return self._head + (
            b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def delta(self, text: str) -> bytes:
        """Return a chunk with text."""
        return self._delta + _encode(text) + b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def live(self, entry: Delta) -> bytes:
        """Return a chunk with an entry's text: `delta` without a call between."""
        return self._delta + _encode(entry.text) + b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def last(self, ended: Ended) -> bytes:
        """Return the finish chunk, the usage chunk where asked for, and `[DONE]`."""
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _FINISH[ended.finish_reason]}
        if ended.stop_reason is not None:
            choice["stop_reason"] = ended.stop_reason
        tail = self._head + b',"choices":' + _encode([choice]) + b"}\n\n"
        if self._include_usage:
            tail += self._usage_head + b',"choices":[],"usage":' + _encode(usage_object(ended.usage)) + b"}\n\n"
        return tail + DONE


def chat_completion(stream_id: str, model: str, text: str, ended: Ended, *, created_at: int) -> bytes:
    """Return the body of a plain answer."""
    return _encode(
        {
            "id": completion_id(stream_id),
            "object": "chat.completion",
            "created": created_at,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": _FINISH[ended.finish_reason],
                    "stop_reason": ended.stop_reason,
                }
            ],
            "usage": usage_object(ended.usage),
        }
    )
