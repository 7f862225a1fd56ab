"""What a caller asks for, typed as in chat completions, and the stream session that it becomes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict

from headrace_client.session import StreamSession


class Message(TypedDict, total=False):
    """One message of a conversation."""

    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: Required[str | Sequence[Mapping[str, Any]]]


class Sampling(TypedDict, total=False):
    """Sampling fields; what is left out is the deployment's default."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    ignore_eos: bool
    response_format: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionMaker:
    """Makes sessions of streams that are tried for so long."""

    connect_seconds: float
    reconnect_seconds: float

    def generate(
        self,
        model: str,
        messages: Sequence[Message],
        window: int | None,
        sampling: Sampling,
        *,
        notices: bool,
        auto_ack: bool,
    ) -> StreamSession:
        """Return the session of a new stream."""
        fields = {"model": model, "messages": list(messages), "window": window, **sampling}
        return self._session(generate=fields, notices=notices, auto_ack=auto_ack)

    def follow(self, stream_id: str, after: int, *, notices: bool, auto_ack: bool) -> StreamSession:
        """Return the session of an existing stream."""
        return self._session(stream_id=stream_id, after=after, notices=notices, auto_ack=auto_ack)

    def _session(self, **opening: Any) -> StreamSession:  # noqa: ANN401 - see StreamSession
        return StreamSession(
            clock=time.monotonic,
            connect_seconds=self.connect_seconds,
            reconnect_seconds=self.reconnect_seconds,
            **opening,
        )
