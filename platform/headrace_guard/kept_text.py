"""The end of a text that is still needed."""


class KeptText:
    """A text's characters by their offsets, as long as they are kept."""

    def __init__(self) -> None:
        """Be empty."""
        self._text = ""
        self.base = 0

    def __len__(self) -> int:
        return len(self._text)

    def append(self, piece: str) -> None:
        """Take the next piece."""
        self._text += piece

    def between(self, start: int, end: int) -> str:
        """Return what is there."""
        return self._text[start - self.base : end - self.base]

    def skip_to(self, offset: int) -> None:
        """Forget all, and go on there."""
        self._text, self.base = "", offset

    def forget(self, before: int) -> None:
        """Keep only what comes after."""
        if before > self.base:
            self._text = self._text[before - self.base :]
            self.base = before
