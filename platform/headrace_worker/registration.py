"""What a worker registers of its model, so that gateways render prompts as its engine would (DESIGN 4.2)."""

import hashlib
import logging
from collections.abc import Sequence

from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import ModelAssets, TemplateProbe
from headrace_wire.messages import ChatTurn
from headrace_worker.engine import PromptRenderer, RequestRefusedError

log = logging.getLogger(__name__)

ASSETS_SECONDS = 7 * 24 * 3600

PROBE_CONVERSATIONS: tuple[tuple[ChatTurn, ...], ...] = (
    (ChatTurn("user", "Hello"),),
    (ChatTurn("system", "You are terse."), ChatTurn("user", "What is 2 + 2?")),
    (
        ChatTurn("user", "Who wrote it?"),
        ChatTurn("assistant", "Nobody knows.\n\nPerhaps two people."),
        ChatTurn("user", "  And when?  "),
    ),
    (
        ChatTurn("system", "Répondez en français. <b>&amp;</b> {{ braces }} {% raw %}"),
        ChatTurn("user", "naïve café — \u2018quotes\u2019 … 你好\uff0c世界 สวัสดีครับ 👩‍👩‍👧‍👦 🇨🇭 e\u0301 \u200b\u00a0|"),
        ChatTurn("assistant", "```python\nprint('\t')\n```\n"),
        ChatTurn("user", "<|im_end|> </s> [INST] <eos> 1234567890"),
    ),
    (ChatTurn("user", "A" * 300 + "\n" * 5 + "end"),),
)
"""A system turn, several turns, white space at the edges, unicode, and text that looks like markup of templates."""


def model_assets(
    *,
    identity: Sequence[str],
    tokenizer_json: bytes,
    chat_template: str,
    special_tokens: dict[str, str],
    renderer: PromptRenderer,
    max_model_len: int,
) -> ModelAssets:
    """Return what gateways need, with the ids of the probes as `renderer` gives them.

    `identity` is what tells models apart whose tokenizer and template are the same (path, dtype, quantisation). A model
    without a chat template has no probes: it takes completions only.
    """
    probes = tuple(_probes(renderer)) if chat_template else ()
    digest = hashlib.sha256()
    parts = [*identity, chat_template, repr(sorted(special_tokens.items())), repr(probes), str(max_model_len)]
    for part in (tokenizer_json, *(part.encode() for part in parts)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return ModelAssets(
        digest.hexdigest()[:16], tokenizer_json, chat_template, special_tokens, probes, max_model_len=max_model_len
    )


def _probes(renderer: PromptRenderer) -> list[TemplateProbe]:
    probes = []
    for conversation in PROBE_CONVERSATIONS:
        try:
            probes.append(TemplateProbe(conversation, tuple(renderer.render(conversation))))
        except RequestRefusedError as refusal:
            log.info("the chat template refuses a probe of %d turns: %s", len(conversation), refusal.message)
    return probes


async def register(redis: "Redis", assets: ModelAssets) -> None:
    """Publish the assets.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    await redis.set(redis_keys.model_assets_key(assets.fingerprint), codec.encode(assets), ex=ASSETS_SECONDS)
