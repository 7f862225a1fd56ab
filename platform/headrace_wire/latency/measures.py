"""What is measured, under the names that everything else has for it. `docs/latency.md` says what counts where."""

from enum import StrEnum


class Measure(StrEnum):
    """Durations in seconds, one observation per stream; `GAP` has one per text after the first."""

    TTFT = "ttft"
    """Request come in to the first text written to its socket; the sum of the phases below."""
    ADMISSION = "admission"
    """Request come in to admitted: by the gateway's clock."""
    QUEUE = "queue"
    """Admitted to claimed by a worker."""
    RETRIEVAL = "retrieval"
    """Looking up documents for the prompt. Nothing does yet."""
    PREFILL = "prefill"
    """Claimed to the first token out of the engine."""
    GUARD = "guard"
    """First token out of the engine to the first text that guardrails let out."""
    FLUSH = "flush"
    """The rest of the first token's way, through log and delivery to the transport: by the gateway's clock."""
    TPOT = "tpot"
    """Decode time over the tokens after the first, as the worker measured it."""
    GAP = "gap"
    """One text written to its socket to the next."""
    TOTAL = "total"
    """Request come in to the last byte written to its socket."""


PHASES = (Measure.ADMISSION, Measure.QUEUE, Measure.RETRIEVAL, Measure.PREFILL, Measure.GUARD, Measure.FLUSH)
"""Parts of `TTFT`, in their order."""


class Tally(StrEnum):
    """Counters beside the durations."""

    REQUESTS = "requests"
    """Streams that ended for the reader who asked for them, however they ended."""
    ERRORS = "errors"
    """Those of them that failed, and requests that the server could not begin."""
    TOKENS = "tokens"
    """Tokens handed to transports."""
    PROMPT_TOKENS = "prompt_tokens"
    CACHED_TOKENS = "cached_tokens"
    """Those of the prompt that came from a prefix cache."""
    STALLS = "stalls"
    """Times that a client did not take what was there."""
    TIMEOUTS = "timeouts"
    """Streams that ended at a deadline: of the queue, of the engine, or of a client that took or answered nothing."""
    DIVERTED = "diverted"
    """Requests that went to a fallback, counted for the deployment that was asked."""
    TURNED_AWAY = "turned_away"
    """Requests that a circuit breaker refused; errors, too."""
