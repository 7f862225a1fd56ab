"""Computing the beginning of a prompt while it is still being typed, where a worker has time for it.

A draft is no request: nothing is admitted, generated, logged or billed for it. What stays is KV cache under the
tenant's own salt, which the prompt finds when it is sent.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence

import structlog
from redis.exceptions import RedisError

from apps.deployments.prompt_rendering import PromptRenderer
from apps.streams import metrics
from apps.streams.config_view import Caller
from apps.streams.drafts import OPEN_SECONDS, DraftLine, DraftOff, DraftOffReason
from apps.streams.gateway import Gateway
from apps.streams.services.guarding import draft_guard
from apps.streams.services.prompting import RENDER_AT_ONCE_CHARACTERS, context_limit, length_check
from headrace_wire.cache_salt import cache_salt
from headrace_wire.codec import pack_token_ids
from headrace_wire.draft_budget import DraftVerdict, Sharing, draft_name
from headrace_wire.errors import ContextLengthError
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.messages import CancelPrefill, ChatTurn, ControlMessage, Prefill, PrefillPurpose
from headrace_wire.prefix_hashes import BLOCK_TOKENS, prefix_hashes
from headrace_wire.prefix_index import PrefixIndex
from headrace_wire.snapshot import DeploymentConfig

log = structlog.get_logger(__name__)

MIN_TOKENS = 2 * BLOCK_TOKENS
"""A shorter prompt is computed in no time when it is sent."""

BUSY_SHARE = 0.5
"""Of a worker's places: with so many taken, it has no time for drafts."""

BUSY_RETRY_SECONDS = 2.0

MOST_IN_FLIGHT = 32
"""Drafts of a tenant, at all gateways together."""

LIFE_SECONDS = 5.0
"""A prefill that was not begun by then is not worth it; nor does it count against `MOST_IN_FLIGHT` any more."""

REPEATED_SHARE = 16
"""Tokens of a prefix that was computed before count so many times less: they are only carried again."""


async def draft_prefill(
    *,
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    conversation: Sequence[ChatTurn],
    line: DraftLine,
) -> DraftOff | None:
    """Have what is certain of a prompt computed; its last message is unfinished. The line's former draft is taken back.

    Too little of it, too much, or what a guardrail blocks is passed over in silence.

    Raises:
        InvalidRequestError: the model's template refuses the conversation.
        GuardrailUnavailableError: a policy that applies cannot be had.
    """
    fingerprint = gateway.fleet.fingerprint(deployment.name)
    renderer = gateway.renderers.get(fingerprint)
    if not (caller.tenant.draft_tokens_per_minute and deployment.prefills_drafts):
        return _off(DraftOffReason.DISABLED)
    if renderer is None:
        is_tried = gateway.renderers.is_tried(fingerprint)
        return _off(DraftOffReason.UNSUPPORTED if is_tried else DraftOffReason.BUSY)
    idle = [worker for worker in gateway.fleet.workers(deployment.name) if _has_time(worker)]
    if not idle or not gateway.breakers.is_closed(deployment):  # its prompt would go to a fallback
        return _off(DraftOffReason.BUSY)
    ids = await _certain(gateway, caller, deployment, renderer, conversation)
    former = line.draft
    is_same_model = former is not None and former.deployment == deployment.name
    if len(ids) < 4 * MIN_TOKENS or (former is not None and is_same_model and former.ids == ids):
        return None
    common = former.common_tokens(ids) if former is not None and is_same_model else 0
    fresh = len(ids) // 4 - common
    try:
        worker = await _worker(gateway, caller, deployment, idle, line, ids)
        return await _ask(gateway, caller, deployment, worker, line, ids, fresh=fresh)
    except RedisError as error:
        log.warning("draft_not_prefilled", problem=str(error))
        return _off(DraftOffReason.BUSY)


async def draft_withdraw(*, gateway: Gateway, line: DraftLine) -> None:
    """Have no more of a line's draft computed: it was sent, or given up.

    A prompt that was sent goes on from what is there by then, at its own priority; to let its draft run on beside it
    would be to compute the rest twice.
    """
    draft = line.draft
    if draft is None or not line.is_computing:
        return
    line.is_computing = False
    try:
        await gateway.queue.tell([(f"@{draft.worker}", CancelPrefill(draft.prefill_id))])
        await gateway.draft_budget.release(draft.tenant_id, draft.prefill_id)
    except RedisError as error:
        log.warning("draft_not_withdrawn", problem=str(error))  # its life is short


async def _certain(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    renderer: PromptRenderer,
    conversation: Sequence[ChatTurn],
) -> bytes:
    """Return the whole blocks of ids that the prompt will begin with; empty where none may be computed."""
    try:
        length_check(gateway, deployment, conversation)
    except ContextLengthError:
        return b""
    turns = await draft_guard(gateway=gateway, caller=caller, deployment=deployment, conversation=conversation)
    if turns is None:
        return b""
    if sum(len(turn.content) for turn in turns) <= RENDER_AT_ONCE_CHARACTERS:
        ids = renderer.render_open(turns)
    else:
        ids = await asyncio.to_thread(renderer.render_open, turns)
    if len(ids) >= (context_limit(gateway, deployment) or renderer.max_model_len):
        return b""
    return pack_token_ids(ids[: len(ids) // BLOCK_TOKENS * BLOCK_TOKENS])


async def _ask(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    worker: WorkerInfo,
    line: DraftLine,
    ids: bytes,
    *,
    fresh: int,
) -> DraftOff | None:
    tenant, former = caller.tenant, line.draft if line.is_computing else None
    prefill_id, name = f"draft-{secrets.token_hex(8)}", b""
    salt = cache_salt(gateway.secret, tenant.id)
    if not gateway.is_alone:
        name = draft_name(prefix_hashes(salt, deployment.name, ids)[-1], prefill_id)
    shared = line.draft if line.draft is not None and not line.draft.is_sent else None
    decision = await gateway.draft_budget.take(
        tenant.id,
        tokens=fresh + (len(ids) // 4 - fresh) // REPEATED_SHARE,
        tokens_per_minute=tenant.draft_tokens_per_minute,
        most_in_flight=MOST_IN_FLIGHT,
        prefill_id=prefill_id,
        replaces=former.prefill_id if former is not None else "",
        life_seconds=LIFE_SECONDS,
        sharing=Sharing(
            name, shared.name if shared is not None and shared.tenant_id == tenant.id else b"", OPEN_SECONDS
        ),
    )
    messages: list[tuple[str, ControlMessage]] = []
    if former is not None:
        messages.append((f"@{former.worker}", CancelPrefill(former.prefill_id)))
    if decision.verdict is DraftVerdict.OK:
        prefill = Prefill(
            prefill_id,
            tenant.id,
            salt,
            ids,
            int((time.time() + LIFE_SECONDS) * 1000),
            PrefillPurpose.DRAFT,
        )
        messages.append((f"@{worker.incarnation}", prefill))
    line.is_computing = False
    if messages:
        await gateway.queue.tell(messages)
    if decision.verdict is not DraftVerdict.OK:
        return _off(DraftOffReason(decision.verdict.value), decision.retry_after_seconds)
    gateway.drafts.note(
        line,
        tenant_id=tenant.id,
        deployment=deployment.name,
        ids=ids,
        tokens=fresh,
        prefill_id=prefill_id,
        worker=worker.incarnation,
        name=name,
        is_former_sent=decision.is_former_sent,
    )
    return None


async def _worker(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    idle: Sequence[WorkerInfo],
    line: DraftLine,
    ids: bytes,
) -> WorkerInfo:
    """Return the worker that has the line's former draft, else the one that holds most of the prompt."""
    if len(idle) == 1:
        return idle[0]
    by_name = {worker.incarnation: worker for worker in idle}
    if line.draft is not None and line.draft.worker in by_name:
        return by_name[line.draft.worker]
    hashes = prefix_hashes(cache_salt(gateway.secret, caller.tenant.id), deployment.name, ids)
    holder = await PrefixIndex(gateway.functions).preferred(deployment.name, hashes)
    if holder is not None and holder.incarnation in by_name:
        return by_name[holder.incarnation]
    return min(idle, key=lambda worker: (worker.num_requests_running, worker.started_at))


def _has_time(worker: WorkerInfo) -> bool:
    """Say whether there is time for a draft; one request that the engine has may be another draft's."""
    waiting = worker.num_requests_waiting
    busy = worker.num_requests_running - worker.num_requests_held + waiting
    return worker.state is WorkerState.READY and waiting <= 1 and busy < max(2, worker.max_num_seqs * BUSY_SHARE)


def _off(reason: DraftOffReason, retry_after_seconds: float | None = None) -> DraftOff:
    metrics.DRAFTS_OFF.labels(reason.value).inc()
    if reason is DraftOffReason.BUSY:
        retry_after_seconds = BUSY_RETRY_SECONDS
    return DraftOff(reason, retry_after_seconds)
