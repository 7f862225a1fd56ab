"""What the worker needs of an engine. One protocol, so that everything else is tested without a model."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from tokenizers import Tokenizer

from headrace_wire.fleet import ModelAssets
from headrace_wire.messages import ChatTurn, FinishReason, SamplingParams


class EngineRequest(Struct, frozen=True):
    """One generation, as ids; the engine neither decodes text nor looks for stop strings."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    cache_salt: str
    """Partitions the prefix cache; empty only for the worker's own warm-up."""


class EngineOutput(Struct, array_like=True, gc=False):
    """What one request gained since its last output; often one token."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """Set on the last output of a request. ABORT where the engine gave the request up by itself."""
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


class EngineStats(Struct, frozen=True, array_like=True):
    """The engine's own count of its work."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0


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


class EngineRefusedError(Exception):
    """The engine does not start with this configuration; only another configuration helps. The message is its own."""


class EngineDeadError(Exception):
    """The engine has failed or could not start; every request in it is lost."""


class RequestRefusedError(Exception):
    """The engine does not take this request."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


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
