"""What the worker needs of an engine. One protocol, so that everything else is tested without a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from tokenizers import Tokenizer

from headrace_wire.continuation import EXACT_ENGINE, EngineTraits
from headrace_wire.fleet import ModelAssets
from headrace_wire.messages import ChatTurn, FinishReason, SamplingParams
from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts


class EngineAdapter(Struct, frozen=True, array_like=True):
    """A LoRA adapter as an engine knows it."""

    number: int
    """Of this engine alone, from 1; never used twice."""
    name: str
    """Says which weights these are: it partitions what is computed with them."""
    folder: str


class EngineRequest(Struct, frozen=True):
    """One generation, as ids; the engine neither decodes text nor looks for stop strings.

    Positions count the tokens of the whole answer: `generated_ids` take the first ones, and limits of `sampling` stand
    as the client set them.
    """

    request_id: str
    """Never used twice, also not for the same stream."""
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    cache_salt: str
    """Partitions the prefix cache; empty only for the worker's own warm-up."""
    generated_ids: Sequence[int] = ()
    """What the answer has already; the engine goes on after it as if it had generated it itself."""
    credit: int = 0
    """Position up to which it may generate; 0 for no limit. See `Engine.credit`."""
    ahead: bool = False
    """Goes before everything that has not been served yet."""
    behind: bool = False
    """Goes after everything else, and takes no KV cache from anybody: nobody waits for it."""
    tenant_id: str = ""
    stream_id: str = ""
    """Whose KV checkpoint it has; empty for none."""
    adapter: EngineAdapter | None = None
    """One that the engine has loaded; None for the model as it is."""


class EngineOutput(Struct, array_like=True, gc=False):
    """What one request gained since its last output; often one token."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """Set on the last output of a request. ABORT where the engine gave the request up by itself."""
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


class HeldRequest(Struct, frozen=True, array_like=True):
    """A request that is out of credit."""

    request_id: str
    seconds: float
    """Since when."""
    kv_cache_usage: float
    """Share of the KV cache that it keeps, 0..1; 0 for one that was spilled, or never ran."""


class EngineStats(Struct, frozen=True, array_like=True):
    """The engine's own count of its work. Held requests neither run nor wait."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    held: Sequence[HeldRequest] = ()
    """The longest-held first: those to suspend where there are too many."""
    checkpoints: CheckpointCounts = field(default_factory=CheckpointCounts)
    num_preemptions: int = 0
    """Running requests that lost their KV cache to others and began anew, since the engine's start."""

    @property
    def num_requests_held(self) -> int:
        """Requests out of credit."""
        return len(self.held)

    @property
    def num_requests_spilled(self) -> int:
        """Those of them that keep no KV cache."""
        return sum(not request.kv_cache_usage for request in self.held)


class PromptRenderer(Protocol):
    """Makes prompt ids the way that the engine itself would."""

    def render(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the ids of a conversation with the generation prompt at its end.

        Raises:
            RequestRefusedError: the model's template does not take this conversation.
        """
        ...

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a plain prompt, special tokens added as the model wants them."""
        ...


class EngineInfo(Struct, frozen=True):
    """What a started engine says of itself."""

    model: str
    assets: ModelAssets
    tokenizer: Tokenizer
    renderer: PromptRenderer
    max_model_len: int
    max_num_seqs: int
    traits: EngineTraits = EXACT_ENGINE
    cache_tokens: int = 0
    """What its prefix cache holds while nothing runs; 0 where it has none."""
    max_adapters: int = 0
    """LoRA adapters that it holds at once; 0 where it was started without."""


class EngineRefusedError(Exception):
    """The engine does not start with this configuration; only another configuration helps. The message is its own."""


class EngineDeadError(Exception):
    """The engine has failed or could not start; every request in it is lost."""


class AdapterRefusedError(Exception):
    """The adapter cannot be used here; the message names no path of this machine."""


class RequestRefusedError(Exception):
    """The engine does not take this request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        """`param` is the request's field that is wrong, in OpenAI's words, where that is known."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


Deliver = Callable[[list[EngineOutput]], None]
"""Gets all outputs that are there at once, usually those of one engine step; called on the event loop."""


class Engine(Protocol):
    """One started model. All methods belong to the event loop that called `start`."""

    async def start(self, deliver: Deliver) -> EngineInfo:
        """Load the model; from now on, each step's outputs go to `deliver`.

        Raises:
            EngineRefusedError: the configuration is not acceptable.
            EngineDeadError: anything else that may pass.
        """
        ...

    async def submit(self, request: EngineRequest) -> None:
        """Hand a request over; its outputs are delivered.

        Raises:
            RequestRefusedError: it cannot be served as it is; nothing was queued.
            EngineDeadError: the engine is gone.
        """
        ...

    async def load_adapter(self, adapter: EngineAdapter) -> None:
        """Load a LoRA adapter, beside at most `max_adapters` - 1 others.

        Raises:
            AdapterRefusedError: the engine cannot use it; everything else stays as it was.
            EngineDeadError: the engine is gone.
        """
        ...

    async def unload_adapter(self, number: int) -> None:
        """Give up an adapter that no request has any more. Never raises."""
        ...

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests may generate, all at once with the engine's next step; unknown ids are fine.

        A request generates up to its credit exactly, and then is held: it frees its slot at once and keeps its KV cache
        until somebody else needs it. More credit lets it go on, ahead of what waits. Whoever counts its outputs
        therefore knows that it is held as soon as the engine does.
        """
        ...

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once, at most the engine's `max_num_seqs`; those over it wait."""
        ...

    async def checkpoint(self, request_ids: Sequence[str]) -> None:
        """Save what was computed for requests that somebody else will go on with, where the engine keeps checkpoints.

        Returns when it is written, cannot be, or takes too long. Never raises; unknown ids are fine.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests, wherever they are. Returns when the engine has stopped them, or is dead; unknown ids are fine.

        Outputs of an aborted request may still be in flight and are to be ignored.
        """
        ...

    async def wait_death(self) -> str:
        """Return why the engine is gone, as soon as it is. Never returns while it lives."""
        ...

    async def stats(self) -> EngineStats:
        """Return the engine's own count of its work.

        Raises:
            EngineDeadError: the engine is gone.
        """
        ...

    async def shutdown(self) -> None:
        """End the engine and everything it started. Never raises; may be called in any state."""
        ...
