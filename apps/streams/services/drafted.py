"""Prompts that were computed while they were typed: which draft one goes on from, of this gateway or of another."""

from collections.abc import Sequence

from apps.streams.config_view import Caller
from apps.streams.drafts import SentPrompt
from apps.streams.gateway import Gateway
from apps.streams.services.drafting import MIN_TOKENS
from headrace_wire.messages import GenerateRequest
from headrace_wire.prefix_hashes import BLOCK_TOKENS, prefix_hashes
from headrace_wire.snapshot import DeploymentConfig

_TOKEN_BYTES = 4


def prompt_sent(gateway: Gateway, caller: Caller, deployment: DeploymentConfig, request: GenerateRequest) -> SentPrompt:
    """Note that a prompt is sent; drafts are computed for the model as it is, and not for adapters."""
    tenant = caller.tenant
    if deployment.adapter is not None or len(request.prompt_ids) < MIN_TOKENS * _TOKEN_BYTES:
        return SentPrompt(tenant.id, deployment.name)
    sent = gateway.drafts.sent(tenant.id, deployment.name, request.prompt_ids)
    sent.may_be_anothers = not gateway.is_alone and deployment.prefills_drafts and tenant.draft_tokens_per_minute > 0
    return sent


def draft_claim(request: GenerateRequest, sent: SentPrompt, prefix: Sequence[bytes]) -> bytes:
    """Return what admission is asked of a prompt; empty where no other gateway can know of a draft of it.

    `prefix` are the prompt's hashes, as far as somebody has made them already.
    """
    if sent.former is None and not sent.may_be_anothers:
        return b""
    return sent.claim(
        lambda: (
            prefix
            if len(prefix) == len(request.prompt_ids) // (BLOCK_TOKENS * _TOKEN_BYTES)
            else prefix_hashes(request.cache_salt, request.deployment, request.prompt_ids)
        )
    )
