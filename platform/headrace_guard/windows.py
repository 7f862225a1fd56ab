"""Overlapping windows over one answer: what is judged next, and what a passed window lets out.

A window begins with the `context_size` tokens that the one before did not let out, so whatever is no longer than that
is whole in one window before any of it goes out. One window is judged at a time; the next one takes all that has come
meanwhile.
"""

from collections import deque

from msgspec import Struct

WINDOWS_AHEAD = 3
"""Chunks that an engine may be ahead of its judge: one is judged, one waits, one is being made."""


class Window(Struct, frozen=True):
    """One text to be judged."""

    text: str
    start: int
    """Offset of its first character in the whole text (code points)."""
    end: int
    tokens_end: int
    """Position of its last token."""


class _Piece(Struct, frozen=True):
    text: str
    tokens_end: int
    end: int


class Windows:
    """Cuts one answer. With `holds` false the text is out already, and windows only say how far it is judged."""

    def __init__(self, *, chunk_size: int, context_size: int, holds: bool = True) -> None:
        self._chunk_size = chunk_size
        self._context_size = context_size
        self._holds = holds
        self._pieces: deque[_Piece] = deque()
        """What no window has let out, in order."""
        self._tokens = 0
        self._characters = 0
        self._windowed = 0
        """Position of the last token that was in a window."""
        self._under_way: Window | None = None
        self._is_complete = False
        self.passed_tokens = 0
        """Position up to which everything was let out."""
        self.passed_characters = 0

    @property
    def most_tokens(self) -> int:
        """Position up to which the engine may generate now, so that what waits for a judge stays bounded."""
        return self.passed_tokens + self._context_size + WINDOWS_AHEAD * self._chunk_size

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be judged."""
        return self._is_complete and not self._pieces

    @property
    def held_characters(self) -> int:
        """Characters that wait for a judge."""
        return self._characters - self.passed_characters

    def push(self, text: str, tokens: int) -> None:
        """Add the text of so many more tokens; it may be empty."""
        self._tokens += tokens
        self._characters += len(text)
        if self._pieces and not text:
            last = self._pieces.pop()
            self._pieces.append(_Piece(last.text, self._tokens, last.end))
        else:
            self._pieces.append(_Piece(text, self._tokens, self._characters))

    def complete(self) -> None:
        """The answer has ended: what is left is judged whatever its length."""
        self._is_complete = True

    def skip(self, characters: int) -> None:
        """Take this many first characters as passed: they were let out by an earlier owner."""
        while self._pieces and self._pieces[0].end <= characters:
            self._let_out(self._pieces.popleft())
        self._windowed = max(self._windowed, self.passed_tokens)

    def due(self) -> Window | None:
        """Return the window to be judged now; None while one is, or there is too little for one."""
        if self._under_way is not None or not self._pieces:
            return None
        if not self._is_complete and self._tokens - self._windowed < self._chunk_size:
            return None
        self._windowed = self._tokens
        text = "".join([piece.text for piece in self._pieces])
        if not text:
            self.skip(self._characters)
            return None
        self._under_way = Window(text, self.passed_characters, self._characters, self._tokens)
        return self._under_way

    def passed(self) -> str:
        """The window under way has passed; return the text that may go out now."""
        window, self._under_way = self._under_way, None
        if window is None:
            return ""
        is_end = self._is_complete and self._tokens == window.tokens_end
        until = window.tokens_end - (0 if is_end else self._context_size)
        released: list[str] = []
        while self._pieces and self._pieces[0].tokens_end <= until and self._pieces[0].end <= window.end:
            piece = self._pieces.popleft()
            self._let_out(piece)
            released.append(piece.text)
        return "".join(released) if self._holds else ""

    def _let_out(self, piece: _Piece) -> None:
        self.passed_tokens = piece.tokens_end
        self.passed_characters = piece.end
