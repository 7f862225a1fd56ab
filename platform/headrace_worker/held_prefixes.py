"""What this worker's engine should have in its prefix cache, and the reports of it to the index.

Engines do not tell which blocks they keep. So we keep the same account: what was computed here, as many blocks as fit
into the KV cache, the least recently used ones gone first. It is a guess; who is wrong computes something anew.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct
from redis.exceptions import RedisError

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import ChatTurn, GenerateRequest
from headrace_wire.prefix_hashes import (
    BLOCK_TOKENS,
    TEXT_BLOCK_BYTES,
    conversation_text,
    prefix_hashes,
    text_hashes,
)
from headrace_wire.prefix_index import MAX_BLOCKS, PrefixIndex
from headrace_wire.token_log import TokenLog
from headrace_worker.prefix_metrics import PrefixMetrics
from headrace_worker.simulated_cache import use_blocks

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.25
"""Between two reports at least. A claim has noted already what its stream computes."""
MOST_BLOCKS = 65_536
"""Blocks that are kept account of: 2 million tokens."""
ALONE_SECONDS = 1.0
"""Between two looks whether another worker has come."""
UNTOLD_BYTES = 16 * 2**20
"""Prompts that wait for the next report; of more, the oldest are forgotten."""


class _Computed(Struct, frozen=True):
    salt: str
    prompt_ids: bytes = b""
    stream_id: str = ""
    """Its answer was computed, too."""
    text: bytes = b""
    """What was said, where gateways know no ids."""

    @property
    def size(self) -> int:
        return len(self.prompt_ids) + len(self.text)


class HeldPrefixes:
    """The account of one worker. Belongs to one event loop."""

    def __init__(self, index: PrefixIndex, token_log: TokenLog, metrics: PrefixMetrics) -> None:
        self._index = index
        self._log = token_log
        self._metrics = metrics
        self._capacity = 0
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._untold: deque[_Computed] = deque()
        self._untold_bytes = 0
        self._added: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._must_say_all = True
        self._changed = asyncio.Event()
        self.goes_by_text = False
        """Whether workers make the ids, as far as is known."""
        self._pinned: list[_Computed] = []
        """By their texts, until it is known that these matter."""

    def attach(self, cache_tokens: int, *, goes_by_text: bool = False) -> None:
        """An engine has started with an empty prefix cache for so many tokens; 0: it has none.

        `goes_by_text`: no gateway can make prompt ids for it. Else the first conversation that comes tells that.
        """
        self._capacity = min(cache_tokens // BLOCK_TOKENS, MOST_BLOCKS)
        self.goes_by_text = goes_by_text
        self._pinned.clear()
        self._blocks.clear()
        self._untold.clear()
        self._untold_bytes = 0
        self._must_say_all = True
        self._changed.set()

    def computes(self, request: GenerateRequest) -> None:
        """The engine has got a request."""
        if request.prompt_ids:
            self.computed(request.cache_salt, request.prompt_ids)
        elif request.conversation:
            if not self.goes_by_text:
                self.goes_by_text = True
                self._put_pinned()
            self._put_text(_said(request.cache_salt, request.conversation))

    def pinned(self, salt: str, messages: Sequence[ChatTurn]) -> None:
        """The engine has a pinned prompt cache, or computes it soon; its ids are told as it does."""
        self._pinned.append(_said(salt, messages))
        if self.goes_by_text:
            self._put_pinned()

    def _put_pinned(self) -> None:
        for one in self._pinned:
            self._put_text(one)
        self._pinned.clear()

    def _put_text(self, said: _Computed) -> None:
        if self._capacity and len(said.text) >= TEXT_BLOCK_BYTES:
            self._put(said)

    def ended(self, request: GenerateRequest) -> None:
        """The engine has computed an answer, as far as its token ids are stored: the next turn begins with it."""
        if self._capacity and request.prompt_ids:
            self._put(_Computed(request.cache_salt, request.prompt_ids, request.stream_id))

    def computed(self, salt: str, prompt_ids: Sequence[int] | bytes) -> None:
        """The engine has computed a prompt."""
        packed = prompt_ids if isinstance(prompt_ids, bytes) else pack_token_ids(prompt_ids)
        if self._capacity and len(packed) >= 4 * BLOCK_TOKENS:
            self._put(_Computed(salt, packed))

    def _put(self, computed: _Computed) -> None:
        self._untold.append(computed)
        self._untold_bytes += computed.size
        while self._untold_bytes > UNTOLD_BYTES:
            self._untold_bytes -= self._untold.popleft().size
        self._changed.set()

    async def report(self, incarnation: str, *, deployment: str, lease_seconds: float) -> None:
        """Tell the index until cancelled; first everything, for a new incarnation has told nothing yet.

        Nobody needs it while this is the deployment's only worker: what was computed is not even hashed then.
        """
        tell = partial(self._index.report, incarnation, deployment=deployment, lease_seconds=lease_seconds)
        self._must_say_all = True
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._must_say_all and await tell() is None:
                    await asyncio.sleep(ALONE_SECONDS)
                    continue
                await self._take_untold(deployment)
                await self._say(tell)
            except RedisError as error:
                log.warning("cannot report prefixes: %s", error)
                self._must_say_all = True
                self._changed.set()
            await asyncio.sleep(REPORT_SECONDS)

    async def _take_untold(self, deployment: str) -> None:
        count = len(self._untold)  # more may come while we wait
        answers = await self._log.token_ids_of([one.stream_id for one in self._untold if one.stream_id])
        for _ in range(min(count, len(self._untold))):
            one = self._untold.popleft()
            self._untold_bytes -= one.size
            if one.text:
                self._use(text_hashes(one.salt, deployment, one.text))
                continue
            # The newest token's own computation was never needed.
            answer = pack_token_ids(answers.pop(one.stream_id, [])[:-1])
            self._use(prefix_hashes(one.salt, deployment, one.prompt_ids + answer)[:MAX_BLOCKS])
        self._metrics.blocks.set(len(self._blocks))

    def _use(self, hashes: Sequence[bytes]) -> None:
        for block in hashes:
            if block not in self._blocks:
                self._added[block] = None
                self._removed.pop(block, None)
        for block in use_blocks(self._blocks, hashes, self._capacity):
            self._added.pop(block, None)
            self._removed[block] = None

    async def _say(self, tell: Callable[..., Awaitable[int | None]]) -> None:
        """Report what has changed; `tell` is the index's call."""
        count: int | None
        if self._must_say_all:
            count = await tell(added=list(self._blocks), is_all=True)
        else:
            count = await tell(added=list(self._added), removed=list(self._removed))
        self._added.clear()
        self._removed.clear()
        # Fewer than ours: Redis has lost some. (More are of claims that we have not taken account of yet.)
        self._must_say_all = count is None or count < len(self._blocks)
        if self._must_say_all and count is not None:
            self._changed.set()


def _said(salt: str, messages: Sequence[ChatTurn]) -> _Computed:
    return _Computed(salt, text=conversation_text(messages))
