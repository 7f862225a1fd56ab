"""Insults and profanity, by the model of `alt-profanity-check` (MIT): words weighted by a linear classifier.

It was trained with scikit-learn on 200,000 English comments. Its two files are read without scikit-learn, which would
cost every process that finds it installed; the numbers are the same (`tests/guard/judges/test_abuse.py`).
"""

import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from joblib.numpy_pickle import NumpyArrayWrapper, NumpyUnpickler
from numpy.typing import NDArray

from headrace_guard.judges.model_files import package_folder
from headrace_guard.judges.readings import readings_of
from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import AbuseRule

Weights: TypeAlias = NDArray[np.float64]

_WORD = re.compile(r"\b\w\w+\b")


class AbuseJudge:
    """Says how likely a text is an insult or profane."""

    def __init__(self) -> None:
        """Load the model.

        Raises:
            ModelMissingError: the wheel with the model is not installed.
        """
        folder = package_folder("profanity_check", "alt-profanity-check") / "data"
        vectorizer, model = _read(folder / "vectorizer.joblib"), _read(folder / "model.joblib")
        self._vocabulary: dict[str, int] = vectorizer.vocabulary_
        self._rarity: Weights = vectorizer._tfidf.idf_  # noqa: SLF001
        folds = model.calibrated_classifiers_
        self._weights: Weights = np.stack([fold.estimator.coef_[0] for fold in folds])
        self._biases: Weights = np.array([fold.estimator.intercept_[0] for fold in folds])
        self._slopes: Weights = np.array([fold.calibrators[0].a_ for fold in folds])
        self._offsets: Weights = np.array([fold.calibrators[0].b_ for fold in folds])

    def judge(self, rule: AbuseRule, text: str) -> Verdict:
        """Return the probability of the worst sentence; the finding is the word that weighs most in it."""
        score, word = max((self._rate(reading) for reading in readings_of(text)), default=(0.0, -1))
        found = score >= rule.threshold
        return Verdict(found, score, self._word(word) if found else "")

    def _rate(self, text: str) -> tuple[float, int]:
        """Return the classifier's probability, and the index of the word that weighs most; -1 where it knows none."""
        words, counts = np.unique(
            [index for word in _WORD.findall(text.lower()) if (index := self._vocabulary.get(word)) is not None],
            return_counts=True,
        )
        if not words.size:
            return 0.0, -1
        values = counts * self._rarity[words]
        values /= np.linalg.norm(values)
        weighted = self._weights[:, words] * values
        margins = weighted.sum(axis=1) + self._biases
        score = float(np.mean(1 / (1 + np.exp(self._slopes * margins + self._offsets))))
        return score, int(words[weighted.mean(axis=0).argmax()])

    def _word(self, wanted: int) -> str:
        return next((word for word, index in self._vocabulary.items() if index == wanted), "")


class _Plain:
    """Stands for an object of scikit-learn: its attributes and nothing else."""


class _Reader(NumpyUnpickler):  # type: ignore[misc]  # joblib ships no types
    """Reads a pickle of scikit-learn's objects as plain ones, and refuses to run whatever else it names."""

    _NUMPY = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "float64"): np.float64,
        ("numpy._core.multiarray", "scalar"): np.float64().__reduce__()[0],
        ("joblib.numpy_pickle", "NumpyArrayWrapper"): NumpyArrayWrapper,
    }

    def find_class(self, module: str, name: str) -> object:
        if module.startswith("sklearn."):
            return _Plain
        known = self._NUMPY.get((module, name))
        if known is None:
            raise ValueError(f"the model of abuse names {module}.{name}, which is not read")
        return known


def _read(path: Path) -> Any:  # noqa: ANN401  # attributes of a class that is not there
    with path.open("rb") as file:
        return _Reader(path.name, file, ensure_native_byte_order=True).load()
