"""Which answers another engine continues token for token. The one list of those that it cannot.

Everything that the sampling parameters can say is exact on float32 (and on GPU with batch-invariant kernels), unless it
is listed here: an engine takes the tokens that an answer has already as part of its prompt.
"""

from msgspec import Struct

from headrace_wire.messages import SamplingParams


class Exact(Struct, frozen=True):
    """A continued answer equals the undisturbed one. Such a stream may be suspended and moved at any time."""


class NotExact(Struct, frozen=True):
    """A continued answer goes on sensibly, and not as it would have.

    Such a stream is held and spilled, never suspended; where its engine dies, `GenerateRequest.continue_inexactly` says
    whether it goes on or fails.
    """

    reason: str


Exactness = Exact | NotExact


def exactness(sampling: SamplingParams) -> Exactness:
    """Say whether an answer under these parameters can be continued exactly once it has tokens."""
    if sampling.presence_penalty or sampling.frequency_penalty:
        return NotExact("presence_penalty and frequency_penalty count only what their own engine has generated")
    return Exact()
