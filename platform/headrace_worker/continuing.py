"""Whether another engine may go on with one stream."""

from headrace_wire.continuation import EngineTraits, Exact, Exactness, exactness
from headrace_wire.messages import GenerateRequest


class Continuing:
    """What the request asks of whoever continues it, and what the engine that serves it can promise."""

    __slots__ = ("_request", "_traits")

    def __init__(self, request: GenerateRequest, traits: EngineTraits) -> None:
        self._request = request
        self._traits = traits

    @property
    def exactness(self) -> Exactness:
        """Whether another engine would go on with the same tokens."""
        return exactness(self._request.sampling, self._traits)

    @property
    def is_exact(self) -> bool:
        """Whether it has the tokens that any engine would give."""
        return isinstance(self.exactness, Exact)

    @property
    def may_move(self) -> bool:
        """Whether another engine may go on wherever it is."""
        found = self.exactness
        return isinstance(found, Exact) or found.kinds <= set(self._request.continue_inexactly)
