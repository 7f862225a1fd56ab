"""How alike two questions are: what they mean, by their embeddings, and whether they say it with the same words.

Embeddings alone do not tell questions apart whose answers differ: all-MiniLM-L6-v2 finds 0.996 between “Convert dollars
to euros” and “Convert euros to dollars”, and 0.991 between a question and the one with a “not”; one other word in a
long text is hardly seen at all. So words are compared as well.
"""

from collections.abc import Sequence

import numpy as np

from headrace_guard.judges.sentence_encoder import Floats, SentenceEncoder

VECTOR_BYTES = 2 * 384
"""A packed question begins with its vector (float16, little-endian); the ids of its tokens follow (uint16)."""

SAYS_LITTLE = (
    *("a", "an", "the", "please", "kindly", "hi", "hello", "hey", "thanks", "is", "are", "do", "does", "can", "could"),
    *("'", "\u2019", "s", "re", '"', "\u201c", "\u201d", ".", ",", ";", ":", "?", "!", "(", ")"),
)
"""Without these a question asks for the same."""

NEGATIONS = ("not", "no", "never", "without", "t", "cannot", "none", "neither", "nor", "except", "unless")
"""`t` is what tokens leave of `n't`."""


class LikenessJudge:
    """Compares a question with many."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        """Look up the words."""
        self._encoder = encoder
        self._little = np.asarray(encoder.ids_of(SAYS_LITTLE), "<u2")
        self._negations = np.asarray(encoder.ids_of(NEGATIONS), "<u2")

    def pack(self, text: str) -> bytes:
        """Return a question's packed form; nothing where the encoder does not read all of it."""
        ids = self._encoder.whole(text)
        if ids is None:
            return b""
        vector: Floats = self._encoder.encode([text])[0]
        return vector.astype("<f2").tobytes() + np.asarray(ids, "<u2").tobytes()

    def nearest(
        self, packed: bytes, known: Sequence[bytes], *, least: float, same_words: bool, most: int
    ) -> list[tuple[int, float]]:
        """Return indexes and similarities of the known ones that ask for the same, the most alike first.

        `same_words`: all that say something must be in both; else those that are in both must come in the same order.
        """
        if not packed or not known:
            return []
        joined = b"".join(other[:VECTOR_BYTES] for other in known)
        vectors = np.frombuffer(joined, "<f2").reshape(len(known), 384).astype(np.float32)
        likeness = vectors @ np.frombuffer(packed, "<f2", 384).astype(np.float32)
        words = self._words(packed)
        found: list[tuple[int, float]] = []
        for index in np.argsort(-likeness, kind="stable").tolist():
            if likeness[index] < least or len(found) == most:
                break
            if self._agree(words, self._words(known[index]), same_words=same_words):
                found.append((index, min(1.0, float(likeness[index]))))
        return found

    def _words(self, packed: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
        ids = np.frombuffer(packed, "<u2", offset=VECTOR_BYTES)
        return ids[~np.isin(ids, self._little)]

    def _agree(
        self,
        one: np.ndarray[tuple[int], np.dtype[np.uint16]],
        other: np.ndarray[tuple[int], np.dtype[np.uint16]],
        *,
        same_words: bool,
    ) -> bool:
        if same_words:
            return np.array_equal(one, other)
        if not np.array_equal(one[np.isin(one, self._negations)], other[np.isin(other, self._negations)]):
            return False
        return np.array_equal(one[np.isin(one, other)], other[np.isin(other, one)])
