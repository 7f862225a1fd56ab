"""Which answers another engine continues token for token. The one list of those that it cannot.

Everything that the sampling parameters can say is exact, unless it is listed here: an engine takes the tokens that an
answer has already as part of its prompt.
"""

from msgspec import Struct

from headrace_wire.messages import Inexact, SamplingParams

_REASONS = {
    Inexact.PENALTIES: "presence_penalty and frequency_penalty count only what their own engine has generated",
    Inexact.PRECISION: "below float32, numbers depend on what is computed together",
    Inexact.SAMPLING: "this engine does not draw by seed and position",
}


class EngineTraits(Struct, frozen=True):
    """What of an engine decides."""

    is_batch_invariant: bool = True
    """The same tokens give the same choice whatever is computed beside them, and in how many steps: float32, or
    kernels made for it.
    """
    draws_by_position: bool = True


EXACT_ENGINE = EngineTraits()


class Exact(Struct, frozen=True):
    """A continued answer equals the undisturbed one. Such a stream may be suspended and moved at any time."""


class NotExact(Struct, frozen=True):
    """A continued answer goes on sensibly, and not as it would have.

    Where its engine dies, `GenerateRequest.continue_inexactly` says whether it goes on or fails; where it may not go
    on it is held and spilled, never suspended.
    """

    kinds: frozenset[Inexact]

    @property
    def reason(self) -> str:
        """In words."""
        return "; ".join(_REASONS[kind] for kind in sorted(self.kinds))


Exactness = Exact | NotExact


def exactness(sampling: SamplingParams, traits: EngineTraits) -> Exactness:
    """Say whether an answer under these parameters can be continued exactly once it has tokens."""
    kinds = set()
    if sampling.presence_penalty or sampling.frequency_penalty:
        kinds.add(Inexact.PENALTIES)
    if not traits.is_batch_invariant:
        kinds.add(Inexact.PRECISION)
    if sampling.temperature > 0 and not traits.draws_by_position:
        kinds.add(Inexact.SAMPLING)
    return NotExact(frozenset(kinds)) if kinds else Exact()
