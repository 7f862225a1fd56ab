"""What a simulated engine is told: by its deployment, and what its stepping makes of that."""

from msgspec import Struct


class SimulatedArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """What `engine_args` of a simulated deployment may set."""

    ttft_ms: float = 20.0
    """From submission (or from a free slot) to the first token."""
    tpot_ms: float = 20.0
    """Between two steps; every running request gains one token per step."""
    tpot_us_each: float = 0.0
    """Microseconds by which each request that runs makes a step longer."""
    answer_tokens: int = 0
    """Answers end by themselves after this many tokens; 0 lets them run to `max_tokens`."""
    answer: str = ""
    """Every answer is this text, whatever the prompt."""
    kv_tokens: int = 0
    """Size of the make-believe KV cache; 0 takes what `max_num_seqs` requests of full length need."""
    block_tokens: int = 0
    """Whole blocks of so many tokens are found again while they fit in `kv_tokens`; 0: there is no prefix cache."""
    prefill_us: float = 0.0
    """Microseconds for each prompt token that is not found, one prompt after the other; then comes `ttft_ms`."""
    stall_at: int = 0
    """No answer's token at this position (1 is the first) ever comes; 0 for none."""
    poison_id: int = -1
    """A prompt that has this token ends the engine, in place of its answer's token at `poison_at`."""
    poison_at: int = 1
    max_loras: int = 0
    """Adapters that it holds at once; each gives other answers."""
    process: bool = False
    """Run in a child process, as a real engine does, so that its CPU is not the worker's."""


class CoreConfig(Struct, frozen=True, array_like=True):
    """Everything that the stepping depends on."""

    ttft_seconds: float
    tpot_seconds: float
    answer_tokens: int
    answer_ids: list[int]
    alphabet: list[int]
    end_id: int
    max_num_seqs: int
    max_model_len: int
    kv_tokens: int
    stall_at: int = 0
    poison_id: int = -1
    poison_at: int = 1
    block_tokens: int = 0
    prefill_seconds: float = 0.0
    """Of a token."""
    step_seconds_each: float = 0.0
    """By which each request that runs makes a step longer."""
