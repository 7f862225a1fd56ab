"""What this gateway has had computed for prompts that were still being typed, and what came of it.

Only token ids are kept, for `KEPT_SECONDS` after the last change; what a draft says is written nowhere. Where there are
several gateways, each prompt may be sent through another one than its draft: they share the drafts' names in Redis
(`draft_budget`), and whoever admits the prompt takes the draft out there and counts the hit. The gateway that had it
computed finds it gone when the next draft takes its place or its time is over, and does not count it as missed.
"""

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from enum import StrEnum
from itertools import chain, compress

from msgspec import Struct
from msgspec.structs import replace
from redis.exceptions import RedisError

from apps.streams import metrics
from headrace_wire.draft_budget import DraftBudget, claim_of
from headrace_wire.prefix_hashes import BLOCK_TOKENS

KEPT_SECONDS = 120.0
"""How long a draft is remembered after its last change. Whoever thinks for longer is counted as one who never sent."""

OPEN_SECONDS = KEPT_SECONDS + 30.0
"""How long other gateways may count its hit: until after its own has asked them."""

HITS_KEPT = 1024


class DraftOffReason(StrEnum):
    """Why nothing is computed for a draft."""

    DISABLED = "disabled"
    """The tenant's or the deployment's setting says so."""
    UNSUPPORTED = "unsupported"
    """The deployment's prompts are made in its workers."""
    BUSY = "busy"
    """No worker has time to spare."""
    BUDGET = "budget"
    """The tenant's tokens per minute for drafts are used up."""
    CROWDED = "crowded"
    """The tenant has as many drafts computed as it may at once."""


class DraftOff(Struct, frozen=True):
    """Drafts are of no use now; with no time, until somebody changes a setting."""

    reason: DraftOffReason
    retry_after_seconds: float | None = None


class Draft(Struct, frozen=True):
    """The prefix that one line of drafts has come to."""

    tenant_id: str
    deployment: str
    ids: bytes
    """As in `Prefill`."""
    asked: int
    """Tokens at its end that were computed for this draft, as far as is known here."""
    prefill_id: str
    worker: str
    expires_at: float
    """By the monotonic clock."""
    name: bytes = b""
    """By which other gateways know it; empty where none does."""
    is_sent: bool = False
    """Its prompt was sent; `ids` are that prompt's, from which the next draft goes on."""

    def common_tokens(self, ids: bytes) -> int:
        """Return how many tokens another prefix shares with this one, in whole blocks."""
        step = 4 * BLOCK_TOKENS
        end = min(len(ids), len(self.ids)) // step * step
        low, high = 0, end // step
        while low < high:
            middle = (low + high + 1) // 2
            if self.ids[: middle * step] == ids[: middle * step]:
                low = middle
            else:
                high = middle - 1
        return low * BLOCK_TOKENS


class DraftLine:
    """The drafts of one connection, one after the other."""

    def __init__(self) -> None:
        self.draft: Draft | None = None
        """The last one; also after it was sent or withdrawn, since what was computed stays in the engine."""
        self.is_computing = False
        """Whether its prefill was not taken back."""


class SentPrompt:
    """A prompt on its way through admission, and the draft of this gateway that it goes on from, if one does."""

    def __init__(self, tenant_id: str, deployment: str, line: DraftLine | None = None) -> None:
        self.tenant_id = tenant_id
        self.deployment = deployment
        self.line = line
        self.former = line.draft if line is not None else None
        """The draft as it was until then."""
        self.draft: Draft | None = None
        """What has taken its place."""
        self.may_be_anothers = False
        """Other gateways may have had it computed."""

    def claim(self, hashes: Callable[[], Sequence[bytes]]) -> bytes:
        """Return what admission is asked; `hashes` makes those of the prompt."""
        if self.former is None:
            return claim_of(hashes=hashes())
        return claim_of(self.former.name)


class DraftBook:
    """The lines of this gateway that have a draft."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[tuple[str, str], list[DraftLine]] = {}
        self._hits: deque[str] = deque(maxlen=HITS_KEPT)
        self._over: list[Draft] = []
        """Drafts whose time is over, of which others may know more."""

    def note(  # noqa: PLR0913  what a draft is made of
        self,
        line: DraftLine,
        *,
        tenant_id: str,
        deployment: str,
        ids: bytes,
        tokens: int,
        prefill_id: str,
        worker: str,
        name: bytes = b"",
        is_former_sent: bool = False,
    ) -> None:
        """A prefill was asked for, with `tokens` that were not asked for before.

        `is_former_sent`: another gateway had the prompt that goes on from the line's former draft.
        """
        former, asked = line.draft, tokens
        if former is not None and is_former_sent:
            former = replace(former, asked=0)
        if former is not None:
            kept = 0
            if former.tenant_id == tenant_id and former.deployment == deployment:
                kept = max(0, former.asked - (len(former.ids) // 4 - former.common_tokens(ids)))
            metrics.DRAFT_TOKENS_WASTED.labels(former.deployment).inc(former.asked - kept)
            asked += kept
        metrics.DRAFT_TOKENS.labels(deployment).inc(tokens)
        expires_at = self._clock() + KEPT_SECONDS
        self._keep(line, Draft(tenant_id, deployment, ids, asked, prefill_id, worker, expires_at, name))
        line.is_computing = True

    def sent(self, tenant_id: str, deployment: str, prompt: bytes) -> SentPrompt:
        """A prompt is sent. What became of it is told with `admitted` or `not_admitted`."""
        for line, draft in self._drafts(tenant_id, deployment):
            if not draft.is_sent and prompt.startswith(draft.ids):
                sent = SentPrompt(tenant_id, deployment, line)
                expires_at = self._clock() + KEPT_SECONDS
                sent.draft = replace(draft, ids=prompt, asked=0, is_sent=True, expires_at=expires_at)
                self._keep(line, sent.draft)
                return sent
        return SentPrompt(tenant_id, deployment)

    def admitted(self, sent: SentPrompt, stream_id: str, taken: bytes) -> None:
        """A prompt got a stream. `taken` is the draft that it was the first to go on from, as admission says.

        Where only this gateway knows of the draft, that is so without.
        """
        if taken or (sent.former is not None and not sent.former.name):
            metrics.DRAFTS_SETTLED.labels(sent.deployment, "hit").inc()
            self._hits.append(stream_id)

    def not_admitted(self, sent: SentPrompt) -> None:
        """A prompt got no stream of its own: it may be sent again."""
        line, former = sent.line, sent.former
        if line is not None and former is not None and line.draft is sent.draft:
            self._keep(line, former)

    def was_hit(self, stream_id: str) -> bool:
        """Say whether a stream's prompt began with what was computed for a draft."""
        return stream_id in self._hits

    def sweep(self) -> None:
        """Give up what is too old."""
        now = self._clock()
        for key in list(self._lines):
            for line, draft in self._drafts(*key):
                if draft.expires_at <= now:
                    self.give_up(line)

    async def settle(self, budget: DraftBudget) -> None:
        """Count those whose time is over as missed, but for those whose prompt another gateway had.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; all of them were counted.
        """
        over, self._over = self._over, []
        by_tenant: dict[str, list[Draft]] = {}
        for draft in over:
            by_tenant.setdefault(draft.tenant_id, []).append(draft)
        while by_tenant:
            tenant_id, drafts = by_tenant.popitem()
            missed = [True] * len(drafts)
            try:
                missed = await budget.dismiss(tenant_id, [draft.name for draft in drafts])
            except RedisError:
                for draft in chain(*by_tenant.values()):
                    _missed(draft)
                by_tenant.clear()
                raise
            finally:
                for draft in compress(drafts, missed):
                    _missed(draft)

    def keep_only(self, tenant_ids: Container[str]) -> None:
        """Give up those of tenants that are gone."""
        for key in list(self._lines):
            if key[0] not in tenant_ids:
                for line, _ in self._drafts(*key):
                    self.give_up(line)

    def give_up(self, line: DraftLine) -> None:
        """Nothing was sent here of a line's draft, and nothing will be."""
        draft = line.draft
        self._forget(line)
        if draft is None or draft.is_sent:
            return
        if draft.name:
            self._over.append(draft)
        else:
            _missed(draft)

    def _drafts(self, tenant_id: str, deployment: str) -> Iterator[tuple[DraftLine, Draft]]:
        for line in list(self._lines.get((tenant_id, deployment), ())):
            if line.draft is not None:
                yield line, line.draft

    def _keep(self, line: DraftLine, draft: Draft) -> None:
        self._forget(line)
        line.draft = draft
        self._lines.setdefault((draft.tenant_id, draft.deployment), []).append(line)

    def _forget(self, line: DraftLine) -> None:
        draft, line.draft = line.draft, None
        if draft is None:
            return
        key = (draft.tenant_id, draft.deployment)
        lines = self._lines[key]
        lines.remove(line)
        if not lines:
            del self._lines[key]


def _missed(draft: Draft) -> None:
    metrics.DRAFT_TOKENS_WASTED.labels(draft.deployment).inc(draft.asked)
    metrics.DRAFTS_SETTLED.labels(draft.deployment, "missed").inc()
