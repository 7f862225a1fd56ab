"""What this gateway has had computed for prompts that were still being typed, and what came of it.

Only token ids are kept, for `KEPT_SECONDS` after the last change; what a draft says is written nowhere.
"""

import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from apps.streams import metrics
from headrace_wire.prefix_hashes import BLOCK_TOKENS

KEPT_SECONDS = 120.0
"""How long a draft is remembered after its last change. Whoever thinks for longer is counted as one who never sent."""

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


class DraftBook:
    """The lines of this gateway that have a draft."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[tuple[str, str], list[DraftLine]] = {}
        self._hits: deque[str] = deque(maxlen=HITS_KEPT)

    def note(
        self, line: DraftLine, *, tenant_id: str, deployment: str, ids: bytes, tokens: int, prefill_id: str, worker: str
    ) -> None:
        """A prefill was asked for, with `tokens` that were not asked for before."""
        former, asked = line.draft, tokens
        if former is not None:
            kept = 0
            if former.tenant_id == tenant_id and former.deployment == deployment:
                kept = max(0, former.asked - (len(former.ids) // 4 - former.common_tokens(ids)))
            metrics.DRAFT_TOKENS_WASTED.labels(former.deployment).inc(former.asked - kept)
            asked += kept
        metrics.DRAFT_TOKENS.labels(deployment).inc(tokens)
        expires_at = self._clock() + KEPT_SECONDS
        self._keep(line, Draft(tenant_id, deployment, ids, asked, prefill_id, worker, expires_at))
        line.is_computing = True

    def sent(self, tenant_id: str, deployment: str, stream_id: str, prompt: bytes) -> None:
        """A prompt was sent: whichever of the tenant's drafts it goes on from was worth it."""
        for line, draft in self._drafts(tenant_id, deployment):
            if not draft.is_sent and prompt.startswith(draft.ids):
                expires_at = self._clock() + KEPT_SECONDS
                self._keep(line, replace(draft, ids=prompt, asked=0, is_sent=True, expires_at=expires_at))
                metrics.DRAFTS_SETTLED.labels(deployment, "hit").inc()
                self._hits.append(stream_id)
                return

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

    def keep_only(self, tenant_ids: Container[str]) -> None:
        """Give up those of tenants that are gone."""
        for key in list(self._lines):
            if key[0] not in tenant_ids:
                for line, _ in self._drafts(*key):
                    self.give_up(line)

    def give_up(self, line: DraftLine) -> None:
        """Nothing was sent of a line's draft, and nothing will be."""
        draft = line.draft
        self._forget(line)
        if draft is not None and not draft.is_sent:
            metrics.DRAFT_TOKENS_WASTED.labels(draft.deployment).inc(draft.asked)
            metrics.DRAFTS_SETTLED.labels(draft.deployment, "missed").inc()

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
