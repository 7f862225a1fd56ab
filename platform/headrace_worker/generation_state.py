"""What is known of one stream between its claim and its terminal entry: how far it is, and who waits for whom."""

import math
from collections.abc import Callable, Sequence

from headrace_wire.continuation import EXACT_ENGINE, EngineTraits
from headrace_wire.messages import Ended, Replacement
from headrace_wire.request_queue import Claimed
from headrace_wire.token_log import Append
from headrace_worker.answer_text import AnswerText
from headrace_worker.answer_times import AnswerTimes
from headrace_worker.continuing import Continuing
from headrace_worker.engine import EngineOutput
from headrace_worker.output_guard import OutputGuard
from headrace_worker.stream_credit import StreamCredit
from headrace_worker.takeover import History


class GenerationState:
    """The part of a `Generation` that others ask for, and what its reader and its engine are allowed."""

    __slots__ = (
        "_awaits_history",
        "_cached_tokens",
        "_carry",
        "_credit",
        "_early",
        "_emit",
        "_end_due",
        "_history",
        "_instead",
        "_is_started",
        "_last",
        "_prompt_tokens",
        "_recalled",
        "_text",
        "_token_timeout",
        "cancel_reason",
        "claimed",
        "continuing",
        "deadline",
        "ended",
        "epoch",
        "guard",
        "is_cancelling",
        "is_leaving",
        "keeps_adapter",
        "owner",
        "owners_since",
        "request",
        "request_id",
        "seq",
        "stop_at",
        "stream_id",
        "times",
        "was_submitted",
    )

    def __init__(
        self, claimed: Claimed, *, owner: str, emit: Callable[[Append], None], traits: EngineTraits = EXACT_ENGINE
    ) -> None:
        self.claimed = claimed
        self.continuing = Continuing(claimed.request, traits)
        self.request = claimed.request
        self.stream_id = claimed.stream_id
        self.epoch = claimed.epoch
        self.request_id = f"{claimed.stream_id}.{claimed.epoch}"
        """The engine's name for it, of this claim alone: outputs of an earlier one may still be on their way."""
        self.seq = 0
        """Tokens logged so far; the position of the last one."""
        self.ended: Ended | None = None
        self.cancel_reason = ""
        """Why it was cancelled; empty where it was not, or nobody has said."""
        self.is_cancelling = False
        """The engine is being told to stop; the end follows."""
        self.is_leaving = False
        """It is being given back to the queue."""
        self.keeps_adapter = False
        """Its LoRA adapter is loaded, and is not to go before this stream has."""
        self.was_submitted = False
        self._credit = StreamCredit(claimed.credit if claimed.request.window else 0)
        self.stop_at = self._credit.next_stop
        """Position before which it is not `is_at_limit`, so that a token asks nobody."""
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
        """Text of tokens that are in the log without it: recalled, or let out by the guard since."""
        self.guard: OutputGuard | None = None
        """Set before `prepare` where guardrails apply."""
        self._instead: Replacement | None = None
        self._early: list[EngineOutput] = []
        """What the engine gave before the input was found good."""
        self._last: tuple[Sequence[int], Callable[[], None]] | None = None
        """The engine has finished and the guard has not: its last tokens, and the end that waits."""
        self._text: AnswerText | None = None
        """Set by `prepare`."""
        self._token_timeout = claimed.request.inter_token_timeout_seconds
        self._prompt_tokens = len(claimed.request.prompt_ids) // 4
        self._cached_tokens = 0
        self.times = AnswerTimes(claimed.queue_time)
        self.deadline = self.times.claimed_at + claimed.request.ttft_timeout_seconds
        """Monotonic time at which the engine must have given the next token."""

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
        return not self.seq or self.continuing.may_move

    @property
    def new_tokens(self) -> int:
        """Tokens that came from this owner's engine."""
        return self.seq - self._recalled

    @property
    def is_unmoved(self) -> bool:
        """Whether the engine is to give its first token still."""
        return self.was_submitted and self.seq == self._recalled and self.ended is None and not self.is_held

    @property
    def credit(self) -> int:
        """Position up to which its reader lets it generate; 0 for no limit."""
        return self._credit.reader

    def take_credit(self) -> int:
        """Return the position up to which its engine may generate, where that is more than it was told; else 0."""
        taken = self._credit.take(self.seq, limit=self.guard.most_tokens if self.guard is not None else 0)
        self.stop_at = self._credit.next_stop
        return taken

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has come as far as it was told."""
        return self._credit.stops_at(self.seq)

    @property
    def is_at_limit(self) -> bool:
        """Whether it `is_stopped` or would be held; never before `stop_at`."""
        return self._credit.is_reached(self.seq)

    @property
    def is_held(self) -> bool:
        """Whether its reader has to take more first: its engine holds it. Its deadline waits until then."""
        return self._credit.is_used_up and self.ended is None

    def extend(self, up_to: int, now: float) -> None:
        """Its reader can take as much as up to this position."""
        if self.is_held:  # it may have to wait for a slot, and to be computed anew
            self.deadline = now + self.request.ttft_timeout_seconds
        self._credit.allow(up_to)
        self.stop_at = self._credit.next_stop

    def resumed(self, now: float) -> None:
        """The engine was stopped and may go on."""
        if math.isinf(self.deadline) and self._last is None and (self.guard is None or self.guard.is_open):
            self.deadline = now + self.request.ttft_timeout_seconds
