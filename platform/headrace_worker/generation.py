"""One stream between its claim and its terminal entry: engine outputs in, log entries out. No I/O."""

import time
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from headrace_wire.messages import (
    Delta,
    Ended,
    FinishReason,
    Started,
    StreamError,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.request_queue import Claimed
from headrace_wire.token_log import Append
from headrace_worker.engine import EngineOutput
from headrace_worker.stop_strings import StopStrings
from headrace_worker.text_decoder import TextDecoder

ENGINE_GAVE_UP = StreamError("engine_error", "The engine gave this request up.")


class Generation:
    """Decodes, finds stop strings, counts, and writes the stream's entries through `emit`, in order."""

    __slots__ = (
        "_cached_tokens",
        "_claimed_at",
        "_decoder",
        "_emit",
        "_first_token_at",
        "_is_started",
        "_last_token_at",
        "_owner",
        "_prompt_tokens",
        "_stops",
        "claimed",
        "deadline",
        "ended",
        "epoch",
        "is_cancelling",
        "request",
        "seq",
        "stream_id",
    )

    def __init__(self, claimed: Claimed, *, owner: str, emit: Callable[[Append], None]) -> None:
        self.claimed = claimed
        self.request = claimed.request
        self.stream_id = claimed.stream_id
        self.epoch = claimed.epoch
        self.seq = 0
        """Tokens logged so far; the position of the last one."""
        self.ended: Ended | None = None
        self.is_cancelling = False
        """The engine is being told to stop; the end follows."""
        self._owner = owner
        self._emit = emit
        self._is_started = False
        self._decoder: TextDecoder | None = None
        self._prompt_tokens = len(claimed.request.prompt_ids) // 4
        self._cached_tokens = 0
        sampling = claimed.request.sampling
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._claimed_at = time.monotonic()
        self._first_token_at = 0.0
        self._last_token_at = 0.0
        self.deadline = self._claimed_at + claimed.request.ttft_timeout_seconds
        """Monotonic time at which the engine must have given the next token."""

    # ---- in

    def prepare(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        """Set what the answer is decoded with; before the engine gets the request."""
        self._prompt_tokens = len(prompt_ids)
        self._decoder = TextDecoder(tokenizer, prompt_ids)

    def start(self) -> None:
        """Write the fence entry, once: the engine has accepted the request."""
        if self._is_started or self.ended is not None:
            return
        self._is_started = True
        claimed = self.claimed
        entry = Started(self.stream_id, self.epoch, self.seq, self._owner, claimed.attempt, claimed.queue_time)
        self._emit(Append(entry))

    def feed(self, output: EngineOutput, now: float) -> bool:
        """Take an engine output; True when the engine must stop although it does not know (a stop string)."""
        if self.ended is not None or self._decoder is None:
            return False
        if not self._is_started:
            self.start()
        if output.cached_tokens:
            self._cached_tokens = output.cached_tokens
        if output.token_ids:
            if not self.seq:
                self._first_token_at = now
            self._last_token_at = now
            self.deadline = now + self.request.inter_token_timeout_seconds
        if output.finish_reason is None and self._stops is None:
            self._write(output.token_ids, self._decoder.push_all(output.token_ids))
            return False
        return self._feed_carefully(output, self._decoder)

    def cancel(self) -> None:
        """End as its client asked; the engine was told.

        What is held back (half a character, the start of a stop string) goes.
        """
        self._end(StreamState.CANCELLED, FinishReason.ABORT)

    def fail(self, error: StreamError) -> None:
        """End with an error that the reader sees; what is held back goes."""
        self._end(StreamState.FAILED, FinishReason.ERROR, error=error)

    # ---- out

    def _feed_carefully(self, output: EngineOutput, decoder: TextDecoder) -> bool:
        """The way of outputs that end a stream or may do so: token by token, so that a stop counts its own tokens."""
        token_ids, finish = output.token_ids, output.finish_reason
        # The token that stopped the engine has no text, unless it was asked for (as in vLLM's own detokenizer).
        drop_last = finish is FinishReason.STOP and not self.request.sampling.include_stop
        texts: list[str] = []
        for i, token_id in enumerate(token_ids):
            text = "" if drop_last and i == len(token_ids) - 1 else decoder.push(token_id)
            released, stop = self._match(text, self.seq + i + 1)
            texts.append(released)
            if stop is not None:
                self._write(token_ids[: i + 1], "".join(texts))
                self._end(StreamState.FINISHED, FinishReason.STOP, stop_reason=stop)
                return finish is None
        if finish is None:
            self._write(token_ids, "".join(texts))
            return False
        tail, stop = self._flush()
        texts.append(tail)
        self._write(token_ids, "".join(texts))
        if stop is not None:
            self._end(StreamState.FINISHED, FinishReason.STOP, stop_reason=stop)
        elif finish in {FinishReason.ERROR, FinishReason.ABORT}:  # nobody asked for it: aborts of ours are not reported
            self._end(StreamState.FAILED, FinishReason.ERROR, error=ENGINE_GAVE_UP)
        else:
            self._end(StreamState.FINISHED, finish, stop_reason=output.stop_reason)
        return False

    def _match(self, text: str, position: int) -> tuple[str, str | None]:
        if self._stops is None or not text or position <= self.request.sampling.min_tokens:
            return text, None
        return self._stops.push(text)

    def _flush(self) -> tuple[str, str | None]:
        """Return what the decoder and the stop strings still hold, and a stop string that it completes."""
        text = self._decoder.flush() if self._decoder is not None else ""
        if self._stops is None:
            return text, None
        released, stop = self._match(text, self.seq + 1)
        return (released, stop) if stop is not None else (released + self._stops.flush(), None)

    def _write(self, token_ids: Sequence[int], text: str) -> None:
        count = len(token_ids)
        if not count:
            return  # an entry's id is the position of its last token: text cannot stand alone
        at = self.seq
        self.seq = seq = at + count
        self._emit(Append(Delta(self.stream_id, self.epoch, seq, count, text), token_ids, at))

    def _end(
        self,
        state: StreamState,
        finish_reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        error: StreamError | None = None,
    ) -> None:
        if self.ended is not None:
            return
        usage = Usage(self._prompt_tokens, self.seq, self._cached_tokens)
        self.ended = Ended(
            self.stream_id, self.epoch, self.seq + 1, state, finish_reason, stop_reason, usage, self._timings(), error
        )
        self._emit(Append(self.ended, log_ttl_seconds=self.request.log_ttl_seconds))

    def _timings(self) -> Timings:
        if not self.seq:
            return Timings(self.claimed.queue_time)
        return Timings(
            self.claimed.queue_time,
            self._first_token_at - self._claimed_at,
            self._last_token_at - self._first_token_at,
        )
