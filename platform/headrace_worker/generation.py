"""One stream between its claim and its terminal entry: engine outputs in, log entries out. No I/O."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from tokenizers import Tokenizer

from headrace_wire.continuation import EXACT_ENGINE, EngineTraits, Exact, Exactness, exactness
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
from headrace_worker.takeover import History
from headrace_worker.text_decoder import TextDecoder

ENGINE_GAVE_UP = StreamError("engine_error", "The engine gave this request up.")


class DivergedError(Exception):
    """The text in the log is not what the tokens in it decode to here: they mean something else to this model."""


class Generation:
    """Decodes, finds stop strings, counts, and writes the stream's entries through `emit`, in order.

    One that somebody served before is first told its `History` (`recall`); what ends it before that waits until then.
    """

    __slots__ = (
        "_awaits_history",
        "_cached_tokens",
        "_carry",
        "_decoder",
        "_emit",
        "_end_due",
        "_first_token_at",
        "_history",
        "_is_started",
        "_last_token_at",
        "_prompt_tokens",
        "_queue_time",
        "_recalled",
        "_stops",
        "claimed",
        "claimed_at",
        "credit",
        "deadline",
        "ended",
        "epoch",
        "is_cancelling",
        "is_leaving",
        "owner",
        "owners_since",
        "request",
        "request_id",
        "seq",
        "stream_id",
        "traits",
        "was_submitted",
    )

    def __init__(
        self, claimed: Claimed, *, owner: str, emit: Callable[[Append], None], traits: EngineTraits = EXACT_ENGINE
    ) -> None:
        self.traits = traits
        """Of the engine that serves it."""
        self.claimed = claimed
        self.request = claimed.request
        self.stream_id = claimed.stream_id
        self.epoch = claimed.epoch
        self.request_id = f"{claimed.stream_id}.{claimed.epoch}"
        """The engine's name for it, of this claim alone: outputs of an earlier one may still be on their way."""
        self.seq = 0
        """Tokens logged so far; the position of the last one."""
        self.ended: Ended | None = None
        self.is_cancelling = False
        """The engine is being told to stop; the end follows."""
        self.is_leaving = False
        """It is being given back to the queue."""
        self.was_submitted = False
        self.credit = claimed.credit if claimed.request.window else 0
        """Position up to which it may generate; 0 for no limit."""
        self.owners_since = [claimed.epoch]
        """Epochs of its owners, ourselves included."""
        self.owner = owner
        self._emit = emit
        self._is_started = False
        self._awaits_history = claimed.had_owner
        self._history: History | None = None
        self._end_due: Callable[[], None] | None = None
        self._recalled = 0
        self._carry = ""
        """Text of recalled tokens that is not in the log yet."""
        self._queue_time = claimed.queue_time
        self._decoder: TextDecoder | None = None
        self._prompt_tokens = len(claimed.request.prompt_ids) // 4
        self._cached_tokens = 0
        sampling = claimed.request.sampling
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self.claimed_at = time.monotonic()
        self._first_token_at = 0.0
        self._last_token_at = 0.0
        self.deadline = self.claimed_at + claimed.request.ttft_timeout_seconds
        """Monotonic time at which the engine must have given the next token."""

    # ---- in

    def recall(self, history: History) -> None:
        """Learn what the log holds; our fence entry is in it."""
        self._history = history
        self._is_started = True
        self._awaits_history = False
        self._queue_time = history.queue_time
        self.owners_since = history.owners_since
        self.recall_position(len(history.token_ids))
        if self.is_held:
            self.deadline = math.inf
        if self._end_due is not None:
            self._end_due()

    def recall_position(self, seq: int) -> None:
        """Learn only how far the log goes, of one that can do nothing but end."""
        self._awaits_history = False
        self.seq = self._recalled = seq

    def prepare(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], *, max_model_len: int) -> list[int]:
        """Set what the answer is decoded with, before the engine gets the request; return the tokens it has already.

        An answer that turns out to be complete is ended here.

        Raises:
            DivergedError: its tokens and its text do not belong together.
        """
        self._prompt_tokens = len(prompt_ids)
        self._decoder = TextDecoder(tokenizer, prompt_ids)
        history, self._history = self._history, None
        if history is None:
            return []
        self._replay(history, self._decoder)
        if self.seq >= min(self.request.sampling.max_tokens, max_model_len - len(prompt_ids)):
            self._end(StreamState.FINISHED, FinishReason.LENGTH)
        return history.token_ids

    @property
    def is_continued(self) -> bool:
        """Whether it has tokens of an earlier owner."""
        return self._recalled > 0

    @property
    def context_tokens(self) -> int:
        """What the engine has computed for it: the prompt, and the answer so far."""
        return self._prompt_tokens + self.seq

    @property
    def may_continue(self) -> bool:
        """Whether another engine may go on where it is."""
        return not self.seq or self.may_move

    @property
    def may_move(self) -> bool:
        """Whether another engine may go on wherever it is."""
        found = self.exactness
        return isinstance(found, Exact) or found.kinds <= set(self.request.continue_inexactly)

    @property
    def exactness(self) -> Exactness:
        """Whether another engine would go on with the same tokens."""
        return exactness(self.request.sampling, self.traits)

    @property
    def is_exact(self) -> bool:
        """Whether it has the tokens that any engine would give."""
        return isinstance(self.exactness, Exact)

    @property
    def new_tokens(self) -> int:
        """Tokens that came from this owner's engine."""
        return self.seq - self._recalled

    @property
    def is_unmoved(self) -> bool:
        """Whether the engine is to give its first token still."""
        return self.was_submitted and self.seq == self._recalled and self.ended is None and not self.is_held

    @property
    def is_held(self) -> bool:
        """Whether it is out of credit: its engine holds it. Its deadline waits until there is more."""
        return 0 < self.credit <= self.seq and self.ended is None

    def extend(self, up_to: int, now: float) -> None:
        """Let it generate up to this position."""
        if self.is_held:  # it may have to wait for a slot, and to be computed anew
            self.deadline = now + self.request.ttft_timeout_seconds
        self.credit = up_to

    def start(self) -> None:
        """Write the fence entry, once: the engine has accepted the request."""
        if self._is_started or self.ended is not None:
            return
        self._is_started = True
        claimed = self.claimed
        entry = Started(
            self.stream_id, self.epoch, self.seq, self.owner, claimed.attempt, claimed.queue_time, self.is_exact
        )
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
            if not self._first_token_at:
                self._first_token_at = now
            self._last_token_at = now
            is_last = 0 < self.credit <= self.seq + len(output.token_ids)
            self.deadline = math.inf if is_last else now + self.request.inter_token_timeout_seconds
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

    def _replay(self, history: History, decoder: TextDecoder) -> None:
        """Bring decoder and stop strings to where they were, so that text goes on as if nothing had happened."""
        texts: list[str] = []
        for position, token_id in enumerate(history.token_ids, 1):
            text, stop = self._match(decoder.push(token_id), position)
            texts.append(text)
            if stop is not None:
                self._end(StreamState.FINISHED, FinishReason.STOP, stop_reason=stop)
                break
        text = "".join(texts)
        if not text.startswith(history.text):
            raise DivergedError(self.stream_id)
        self._carry = text[len(history.text) :]

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
        if self._carry:
            text, self._carry = self._carry + text, ""
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
        if self._awaits_history:
            self.deadline = math.inf
            self._end_due = partial(self._end, state, finish_reason, stop_reason=stop_reason, error=error)
            return
        usage = Usage(self._prompt_tokens, self.seq, min(self._cached_tokens, self._prompt_tokens))
        self.ended = Ended(
            self.stream_id, self.epoch, self.seq + 1, state, finish_reason, stop_reason, usage, self._timings(), error
        )
        self._emit(Append(self.ended, log_ttl_seconds=self.request.log_ttl_seconds))

    def _timings(self) -> Timings:
        if not self._first_token_at:
            return Timings(self._queue_time)
        return Timings(
            self._queue_time,
            self._first_token_at - self.claimed_at,
            self._last_token_at - self._first_token_at,
        )
