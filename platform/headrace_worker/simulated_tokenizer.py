"""The built-in tokenizer of the simulated engine: bytes and a few words, made in code, nothing to download."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace_wire.messages import ChatTurn
from headrace_worker.engine import RequestRefusedError

SPECIAL_TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TEXT = """
the a water river wheel mill stone gate sluice channel flows turns over under slowly fast again and then light
morning evening bank bridge meadow spring rain cloud valley stream pond reed willow heron fish net boat oar rope
through along beyond between quiet bright cold warm old new first last every always never here there when where
"""
WORDS = tuple(_TEXT.split())
"""Words that answers are made of; each is one token with a space before it."""


def built_in_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer: a prompt's bytes are its tokens, an answer's tokens are words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    for word in WORDS:
        vocabulary.setdefault(f"Ġ{word}", len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in sorted(set(SPECIAL_TOKENS.values()))])
    return tokenizer


class BuiltInRenderer:
    """Renders `CHAT_TEMPLATE` without a template engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the ids of a conversation with the generation prompt at its end."""
        turns = [f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in conversation]
        return self._ids("".join(turns) + "<|im_start|>assistant\n")

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a plain prompt."""
        if not text:
            raise RequestRefusedError("invalid_request_error", "The prompt is empty.")
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def answer_alphabet(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that generated answers are made of: the built-in words, else whatever has printable text."""
    words = [i for word in WORDS if (i := tokenizer.token_to_id(f"Ġ{word}")) is not None]
    if len(words) >= 16:
        return words
    texts = ((i, tokenizer.decode([i], skip_special_tokens=True)) for i in range(min(tokenizer.get_vocab_size(), 4096)))
    return [i for i, text in texts if text.strip() and text.isprintable()]


def tokenizer_file(model: str) -> Path | None:
    """Return the tokenizer of a model folder, or None where `model` names no folder that has one."""
    path = Path(model) / "tokenizer.json"
    return path if path.is_file() else None
