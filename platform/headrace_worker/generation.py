"""One stream between its claim and its terminal entry: engine outputs in, log entries out. No I/O."""

import math
from collections.abc import Sequence
from functools import partial

import msgspec
from tokenizers import Tokenizer

from headrace_wire.cancel_reasons import told_of_cancel
from headrace_wire.messages import (
    Delta,
    Ended,
    FinishReason,
    Replacement,
    Started,
    StreamError,
    StreamState,
    Usage,
)
from headrace_wire.token_log import Append
from headrace_worker.answer_text import AnswerText
from headrace_worker.engine import EngineOutput
from headrace_worker.failures import ENGINE_GAVE_UP, UNANSWERABLE
from headrace_worker.generation_state import GenerationState
from headrace_worker.takeover import History


class DivergedError(Exception):
    """The text in the log is not what the tokens in it decode to here: they mean something else to this model."""


class Generation(GenerationState):
    """Decodes, finds stop strings, counts, and writes the stream's entries through `emit`, in order.

    One that somebody served before is first told its `History` (`recall`); what ends it before that waits until then.
    """

    __slots__ = ()

    # ---- in

    def recall(self, history: History) -> None:
        """Learn what the log holds; our fence entry is in it."""
        self._history = history
        self._is_started = True
        self._awaits_history = False
        self.times.queue_time = history.queue_time
        self.owners_since = history.owners_since
        self.recall_position(len(history.token_ids))
        self._credit.told = history.told_seq
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
        self._text = text = AnswerText(tokenizer, prompt_ids, self.request.sampling)
        history, self._history = self._history, None
        if history is None:
            return []
        self._replay(history, text)
        if self.seq >= min(self.request.sampling.max_tokens, max_model_len - len(prompt_ids)):
            self._end(StreamState.FINISHED, FinishReason.LENGTH)
        return history.token_ids

    def start(self) -> None:
        """Write the fence entry, once: the engine has accepted the request."""
        if self._is_started or self.ended is not None:
            return
        self._is_started = True
        claimed = self.claimed
        entry = Started(
            self.stream_id,
            self.epoch,
            self.seq,
            self.owner,
            claimed.attempt,
            claimed.queue_time,
            self.continuing.is_exact,
        )
        self._emit(Append(entry))

    def feed(self, output: EngineOutput, now: float) -> bool:
        """Take an engine output; True when the engine must stop although it does not know (a stop string)."""
        answer_text = self._text
        if self.ended is not None or answer_text is None or self._last is not None:
            return False
        if self.guard is not None and not self.guard.is_open:
            self._early.append(output)
            self.times.token(now)
            self.deadline = math.inf
            return False
        if not self._is_started:
            self.start()
        if output.cached_tokens:
            self._cached_tokens = output.cached_tokens
        token_ids = output.token_ids
        count = len(token_ids)
        if count:
            times, seq = self.times, self.seq + count
            if times.first_token_at:
                times.last_token_at = now
            else:
                times.token(now)
            is_last = seq >= self.stop_at and self._credit.stops_at(seq)
            self.deadline = math.inf if is_last else now + self._token_timeout
        if output.finish_reason is not None or answer_text.has_stops:
            return self._feed_carefully(output, answer_text)
        text = answer_text.push_only(token_ids[0]) if count == 1 else answer_text.push_all(token_ids)
        guard = self.guard
        if guard is None:
            self._emit_delta(token_ids, text)
            return False
        if count:
            self._emit_delta(token_ids, guard.push(text, count))
        return guard.is_blocked and self._end_blocked()

    def input_passed(self, now: float) -> None:
        """The input was found good: what the engine gave meanwhile may go on its way."""
        early, self._early = self._early, []
        if self.guard is not None:
            self.guard.is_open = True
        for output in early:
            self.feed(output, now)

    def input_blocked(self, error: StreamError | None) -> None:
        """The input was blocked: end with `error`, or with what stands in the place of an answer."""
        if error is not None:
            self.fail(error)
        elif self.guard is not None:
            self._end(StreamState.REPLACED, FinishReason.CONTENT_FILTER)

    def judged(self) -> None:
        """The guard has judged a window."""
        if self.guard is None or self.ended is not None:
            return
        self._carry += self.guard.passed()
        if not self._end_blocked():
            self._finish_judged()

    def cancel(self) -> None:
        """End as its client asked; the engine was told.

        What is held back (half a character, the start of a stop string) goes.
        """
        self._end(StreamState.CANCELLED, FinishReason.ABORT, error=told_of_cancel(self.cancel_reason))

    def fail(self, error: StreamError) -> None:
        """End with an error that the reader sees; what is held back goes."""
        self._end(StreamState.FAILED, FinishReason.ERROR, error=error)

    # ---- out

    def _replay(self, history: History, answer_text: AnswerText) -> None:
        """Bring decoder and stop strings to where they were, so that text goes on as if nothing had happened."""
        texts, stop = answer_text.push_each(history.token_ids, 0)
        if stop is not None:
            self._end(StreamState.FINISHED, FinishReason.STOP, stop_reason=stop)
        if self.guard is not None:
            if history.token_ids:  # its input was found good; without tokens nobody may have said so yet
                self.guard.is_open = True
            carry = self.guard.replay(texts, history.text)
            if carry is None:
                raise DivergedError(self.stream_id)
            self._carry = carry
            self._end_blocked()
            return
        text = "".join(texts)
        if not text.startswith(history.text):
            raise DivergedError(self.stream_id)
        self._carry = text[len(history.text) :]

    def _feed_carefully(self, output: EngineOutput, answer_text: AnswerText) -> bool:
        """The way of outputs that end a stream or may do so: token by token, so that a stop counts its own tokens."""
        token_ids, finish = output.token_ids, output.finish_reason
        # The token that stopped the engine has no text, unless it was asked for (as in vLLM's own detokenizer).
        has_text = len(token_ids) - (finish is FinishReason.STOP and not self.request.sampling.include_stop)
        texts, stop = answer_text.push_each(token_ids[:has_text], self.seq)
        if stop is not None:
            self._finish(token_ids[: len(texts)], "".join(texts), FinishReason.STOP, stop)
            return finish is None
        if finish is None:
            self._write(token_ids, "".join(texts))
            return self._end_blocked()
        tail, stop = answer_text.flush(self.seq + len(token_ids))
        reason = (FinishReason.STOP, stop) if stop is not None else (finish, output.stop_reason)
        self._finish(token_ids, "".join(texts) + tail, *reason)
        return False

    def _finish(self, token_ids: Sequence[int], text: str, finish: FinishReason, stop_reason: str | int | None) -> None:
        """Write the engine's last tokens and end; where the guard is not done, both wait."""
        if finish in {FinishReason.ERROR, FinishReason.ABORT}:  # nobody asked for it: aborts of ours are not reported
            # vLLM ends so, alone, what its own grammar rejects: a tenant can ask for that as often as it likes.
            is_own_fault = finish is FinishReason.ERROR and self.request.sampling.structured is not None
            error = UNANSWERABLE if is_own_fault else ENGINE_GAVE_UP
            end = partial(self._end, StreamState.FAILED, FinishReason.ERROR, error=error)
        else:
            end = partial(self._end, StreamState.FINISHED, finish, stop_reason=stop_reason)
        if self.guard is not None:
            self._carry += self.guard.push(text, len(token_ids)) + self.guard.end()
            self._last = token_ids, end
            self.deadline = math.inf
            if not self._end_blocked():
                self._finish_judged()
            return
        self._write(token_ids, text)
        end()

    def _finish_judged(self) -> None:
        """End where the engine has finished, and the guard too."""
        if self._last is not None and self.guard is not None and self.guard.is_settled:
            (token_ids, end), self._last = self._last, None
            self._emit_delta(token_ids, "")
            end()

    def _end_blocked(self) -> bool:
        """End where the guard says so; True when it does."""
        if self.guard is None or not self.guard.is_blocked:
            return False
        self._end(StreamState.REPLACED, FinishReason.CONTENT_FILTER)
        return True

    def _write(self, token_ids: Sequence[int], text: str) -> None:
        count = len(token_ids)
        if count:  # an entry's id is the position of its last token: text cannot stand alone
            self._emit_delta(token_ids, self.guard.push(text, count) if self.guard is not None else text)

    def _emit_delta(self, token_ids: Sequence[int], text: str) -> None:
        count, at = len(token_ids), self.seq
        if not count:
            return
        self.seq = seq = at + count
        if self._carry:
            text, self._carry = self._carry + text, ""
        if text:
            self._credit.told = seq
            if not self.times.first_text_at:
                self.times.first_text_at = self.times.last_token_at
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
        if self._last is not None:
            (token_ids, _), self._last = self._last, None
            self._emit_delta(token_ids, "")
        if self._awaits_history:
            self.deadline = math.inf
            self._end_due = partial(self._end, state, finish_reason, stop_reason=stop_reason, error=error)
            return
        usage = Usage(self._prompt_tokens, self.seq, min(self._cached_tokens, self._prompt_tokens))
        self.ended = Ended(
            self.stream_id,
            self.epoch,
            self.seq + 1,
            state,
            finish_reason,
            stop_reason,
            usage,
            self.times.timings(is_guarded=self.guard is not None),
            error,
            self._replacement() if state is StreamState.REPLACED else None,
        )
        self._emit(Append(self.ended, log_ttl_seconds=self.request.log_ttl_seconds))

    def replace(self, text: str) -> None:
        """End before anything was generated; `text` stands in the answer's place."""
        self._instead = Replacement(text)
        self._end(StreamState.REPLACED, FinishReason.CONTENT_FILTER)

    def _replacement(self) -> Replacement | None:
        if self.guard is None:
            return self._instead
        found = self.guard.replacement
        # Text that passed, and that no token came after which could have carried it.
        return msgspec.structs.replace(found, text=self._carry + found.text) if self._carry else found
