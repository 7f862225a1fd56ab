"""From a conversation to what an engine gets: its length, its token ids, and the sampling fields left open."""

import asyncio
import secrets
from collections.abc import Sequence

from apps.streams.gateway import Gateway
from headrace_wire.errors import ContextLengthError
from headrace_wire.messages import ChatTurn, SamplingParams
from headrace_wire.snapshot import DeploymentConfig

MAX_CHARACTERS_PER_TOKEN = 64
"""More than any text has on average; what is longer is refused before it is tokenised."""

RENDER_AT_ONCE_CHARACTERS = 256
"""Conversations up to this length are rendered on the event loop: ~0.1 ms, and waking a thread takes as long again."""


async def prompt_ids_render(
    gateway: Gateway, deployment: DeploymentConfig, conversation: Sequence[ChatTurn]
) -> list[int] | None:
    """Return the prompt's token ids; None where the deployment renders in its worker."""
    renderer = gateway.renderers.get(gateway.fleet.fingerprint(deployment.name))
    if renderer is None:
        return None
    if sum(len(turn.content) for turn in conversation) <= RENDER_AT_ONCE_CHARACTERS:
        return renderer.render(conversation)
    return await asyncio.to_thread(renderer.render, conversation)


def length_check(gateway: Gateway, deployment: DeploymentConfig, conversation: Sequence[ChatTurn]) -> None:
    """Refuse at once what cannot fit: to judge and tokenise megabytes takes seconds, and nothing could come of it.

    Raises:
        ContextLengthError: there are too many characters for any text.
    """
    renderer = gateway.renderers.get(gateway.fleet.fingerprint(deployment.name))
    limit = context_limit(gateway, deployment) or (renderer.max_model_len if renderer is not None else 0)
    characters = sum(len(turn.content) for turn in conversation)
    if limit and characters > limit * MAX_CHARACTERS_PER_TOKEN:
        raise ContextLengthError(
            f"This model's maximum context length is {limit} tokens, and your messages have {characters} characters."
            " Shorten the messages.",
            param="messages",
        )


def sampling_complete(
    gateway: Gateway, deployment: DeploymentConfig, sampling: SamplingParams, prompt_ids: Sequence[int] | None
) -> SamplingParams:
    """Fill in what the caller left open, and refuse what cannot fit.

    Raises:
        ContextLengthError: prompt and answer do not fit.
    """
    max_tokens = sampling.max_tokens
    limit = context_limit(gateway, deployment)
    if prompt_ids is not None and limit:
        room = limit - len(prompt_ids)
        if room < max(1, max_tokens):
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens, and your messages take {len(prompt_ids)}"
                + (f" with {max_tokens} asked for the answer" if max_tokens else "")
                + ". Shorten the messages or ask for fewer tokens.",
                param="messages",
            )
        max_tokens = max_tokens or min(deployment.default_max_tokens, room)
    changes: dict[str, object] = {"max_tokens": max_tokens or deployment.default_max_tokens}
    if sampling.seed < 0:
        changes["seed"] = secrets.randbelow(2**31)
    known = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return SamplingParams(**{**known, **changes})


def context_limit(gateway: Gateway, deployment: DeploymentConfig) -> int:
    """Return how many tokens prompt and answer may have together; 0 where nobody has said."""
    reported = [w.max_model_len for w in gateway.fleet.workers(deployment.name) if w.max_model_len]
    return min(reported) if reported else deployment.max_model_len or 0


def most_tokens(conversation: Sequence[ChatTurn]) -> int:
    """Return an upper bound of a prompt's tokens: one for each byte, and some for the markup of a turn."""
    return sum(len(turn.content.encode()) + 16 for turn in conversation)
