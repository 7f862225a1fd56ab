"""Prompt ids from conversations, with the tokenizer and chat template that a deployment's worker registered.

A renderer is used only after it gave the worker's own ids for every probe conversation (DESIGN 4.2); a deployment
without one renders in the worker.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import structlog
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from headrace_wire.errors import InvalidRequestError
from headrace_wire.fleet import ModelAssets
from headrace_wire.messages import ChatTurn

log = structlog.get_logger(__name__)

OPEN_END = "\ufdd0"
"""Stands where an unfinished message goes on. Unicode will never make a character of it."""

LONGEST_MERGE = 32
"""Tokens that a further character may change at most, also in a long text without a space."""


class PromptRenderer:
    """Turns a conversation into prompt ids. Building one takes a while (the tokenizer is parsed): do it in a thread."""

    def __init__(self, assets: ModelAssets) -> None:
        self.fingerprint = assets.fingerprint
        self.max_model_len = assets.max_model_len
        self._tokenizer: Any = Tokenizer.from_buffer(assets.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = dict(assets.special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_template_error
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(assets.chat_template)

    def render(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the prompt ids of a conversation, ready for the assistant's turn.

        Raises:
            InvalidRequestError: the model's template refuses the conversation (roles out of order, for example).
        """
        # The template writes its own special tokens.
        ids: list[int] = self._tokenizer.encode(self._text(conversation), add_special_tokens=False).ids
        return ids

    def render_open(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the ids with which the prompt begins however the last message goes on; empty where that is not known.

        A further character may cut the text before it into other tokens, but only within the word that it belongs to
        and, where that looks ahead, the one before it; where a tokenizer knows no words, no merge reaches as far back
        as `LONGEST_MERGE`.

        Raises:
            InvalidRequestError: the model's template refuses the conversation.
        """
        *earlier, last = conversation
        text = self._text([*earlier, ChatTurn(last.role, last.content + OPEN_END)])
        at = text.find(OPEN_END)
        if at < 0 or OPEN_END in last.content:
            return []
        encoding = self._tokenizer.encode(text[:at], add_special_tokens=False)
        return list(encoding.ids[: _closed(encoding.word_ids)])

    def _text(self, conversation: Sequence[ChatTurn]) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in conversation]
        try:
            text: str = self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, **self._special
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"The model's chat template refused the messages: {error}", param="messages"
            ) from error
        return text


def _closed(words: Sequence[int | None]) -> int:
    """Return how many of the tokens of a text stay as they are when it goes on."""
    end = len(words)
    floor = max(0, end - LONGEST_MERGE)
    last = words[-1] if words else None
    if last is None:
        return floor
    while end > floor and (word := words[end - 1]) is not None and word >= last - 1:
        end -= 1
    return end


def _raise_template_error(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now(tz=UTC).strftime(pattern)


def build_renderer(assets: ModelAssets) -> PromptRenderer | None:
    """Return a renderer that agrees with the worker on every probe, or None (logged)."""
    if not assets.may_suffice:
        return None
    try:
        renderer = PromptRenderer(assets)
        for probe in assets.probes:
            if renderer.render(probe.conversation) != list(probe.prompt_ids):
                log.warning("renderer_disagrees", fingerprint=assets.fingerprint, turns=len(probe.conversation))
                return None
    except (jinja2.TemplateError, InvalidRequestError, ValueError) as error:
        log.warning("renderer_unusable", fingerprint=assets.fingerprint, error=str(error))
        return None
    return renderer
