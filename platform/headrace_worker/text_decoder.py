"""Text from token ids, piece by piece.

All pieces together are what the answer adds to the decoded prompt: a character that needs several tokens comes with its
last one, and only what the answer's end cut short becomes U+FFFD.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

PROMPT_TAIL = 5
"""Ids of the prompt that the decoder starts from."""

_INVALID_PREFIX = "Invalid prefix encountered"


class TextDecoder:
    """Decodes one stream. Special tokens have no text."""

    __slots__ = ("_context", "_pending", "_step", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        """Decode what follows `prompt_ids`: after a prompt, a first word keeps its space (SentencePiece drops it)."""
        self._tokenizer = tokenizer
        tail = list(prompt_ids[-PROMPT_TAIL:])
        if tokenizer.decode(tail, skip_special_tokens=True).endswith("\N{REPLACEMENT CHARACTER}"):
            tail = []  # a prompt cut in mid-character: its bytes must not become part of the answer
        self._step = DecodeStream(ids=tail, skip_special_tokens=True).step
        self._context = tail
        """Ids of the last piece that had text: what `flush` needs to tell new text from old."""
        self._pending: list[int] = []
        """Ids since then: no text of their own yet."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        try:
            text: str | None = self._step(self._tokenizer, token_id)
        except Exception as error:
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            self._pending.append(token_id)
            return self._restart()
        if not text:
            self._pending.append(token_id)
            return ""
        if self._pending:
            self._context, self._pending = [*self._pending, token_id], []
        else:
            self._context = [token_id]
        return text

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        if len(token_ids) == 1:
            return self.push(token_ids[0])
        return "".join([self.push(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """Return the text of what is pending at the end of the answer."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._context, skip_special_tokens=True)
        whole = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=True)
        self._context, self._pending = self._pending, []
        return whole[len(before) :]

    def _restart(self) -> str:
        # Some tokenizers give text that does not grow with the ids when bytes are invalid (vllm#17448): say what is
        # there and start anew after it.
        text = self.flush()
        self._step = DecodeStream(skip_special_tokens=True).step
        return text
