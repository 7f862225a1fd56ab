"""One answer's text: decoded from its tokens, and ended by its stop strings."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from headrace_wire.messages import SamplingParams
from headrace_worker.stop_strings import StopStrings
from headrace_worker.text_decoder import TextDecoder


class AnswerText:
    """Tokens in, text out; `has_stops` says whether each token has to be looked at for itself."""

    __slots__ = ("_decoder", "_min_tokens", "_stops", "has_stops", "push_all", "push_only")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        self._decoder = TextDecoder(tokenizer, prompt_ids)
        self._stops = StopStrings(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self.has_stops = self._stops is not None
        self.push_all = self._decoder.push_all
        """Returns the text that tokens complete; for answers without stop strings."""
        self.push_only = self._decoder.push
        """The same for one token."""

    def push(self, token_id: int, position: int) -> tuple[str, str | None]:
        """Return the text that this token lets out, and the stop string that it completes."""
        return self._match(self._decoder.push(token_id), position)

    def push_each(self, token_ids: Sequence[int], position: int) -> tuple[list[str], str | None]:
        """Return what each token after `position` lets out, and the stop string that the last of them completes.

        Tokens after that one are left out.
        """
        texts: list[str] = []
        for at, token_id in enumerate(token_ids, position + 1):
            text, stop = self.push(token_id, at)
            texts.append(text)
            if stop is not None:
                return texts, stop
        return texts, None

    def flush(self, position: int) -> tuple[str, str | None]:
        """Return what is still held at the answer's end, and a stop string that it completes."""
        text = self._decoder.flush()
        if self._stops is None:
            return text, None
        released, stop = self._match(text, position)
        return (released, stop) if stop is not None else (released + self._stops.flush(), None)

    def _match(self, text: str, position: int) -> tuple[str, str | None]:
        if self._stops is None or not text or position <= self._min_tokens:
            return text, None
        return self._stops.push(text)
