"""The prefix cache of the simulated engine: which blocks a real one would have, by the rules of vLLM's.

Whole blocks only, chained from the prompt's beginning under the request's salt; the last token of a prompt is always
computed; the least recently used block goes first, of one prompt its end before its beginning.
"""

from collections import OrderedDict
from collections.abc import Sequence

from headrace_wire.prefix_hashes import prefix_hashes


class SimulatedCache:
    """Blocks of one engine, at most `capacity`."""

    def __init__(self, block_tokens: int, capacity: int) -> None:
        self._block_tokens = block_tokens
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, salt: str, prompt_ids: Sequence[int]) -> int:
        """Return how many tokens at a prompt's beginning need not be computed."""
        found = 0
        for block in self._hashes(salt, prompt_ids[:-1]):
            if block not in self._blocks:
                break
            found += 1
        return found * self._block_tokens

    def store(self, salt: str, token_ids: Sequence[int]) -> None:
        """Keep what was computed; a request's newest token has not been, and is not among these."""
        use_blocks(self._blocks, self._hashes(salt, token_ids), self._capacity)

    def _hashes(self, salt: str, token_ids: Sequence[int]) -> list[bytes]:
        return prefix_hashes(salt, "", token_ids, block_tokens=self._block_tokens)


def use_blocks(blocks: "OrderedDict[bytes, None]", used: Sequence[bytes], capacity: int) -> list[bytes]:
    """Make these blocks, in a prompt's order, the most recently used ones; return those that had to go."""
    for block in reversed(used):
        blocks[block] = None
        blocks.move_to_end(block)
    return [blocks.popitem(last=False)[0] for _ in range(len(blocks) - capacity)]
