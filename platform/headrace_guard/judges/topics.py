"""Topics: texts that mean something like one of a rule's examples."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from headrace_guard.judges.frames import CACHED_RULES
from headrace_guard.judges.readings import readings_of
from headrace_guard.judges.sentence_encoder import Floats, SentenceEncoder
from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import TopicRule

EXAMPLES_AT_ONCE = 64
FINDING_CHARACTERS = 80


class TopicJudge:
    """Compares what texts and their sentences mean with what the examples of rules mean."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        """Compare by what this encoder makes of texts."""
        self._encoder = encoder
        self._examples: OrderedDict[tuple[str, ...], Floats] = OrderedDict()

    def prepare(self, rule: TopicRule) -> None:
        """Embed the rule's examples."""
        self._embedded(rule.examples)

    def judge(self, asked: Sequence[tuple[TopicRule, str]]) -> list[Verdict]:
        """Return one verdict for each rule and text; all texts are embedded at once."""
        readings = [readings_of(text) for _, text in asked]
        distinct = list(dict.fromkeys(reading for group in readings for reading in group))
        vectors = dict(zip(distinct, self._encoder.encode(distinct), strict=True)) if distinct else {}
        return [
            self._compare(rule, [vectors[reading] for reading in group])
            for (rule, _), group in zip(asked, readings, strict=True)
        ]

    def _compare(self, rule: TopicRule, vectors: list[Floats]) -> Verdict:
        examples = self._embedded(rule.examples)
        if not vectors or not rule.examples:
            return Verdict(found=False, score=0.0)
        likeness = examples @ np.stack(vectors).T
        best = np.unravel_index(int(likeness.argmax()), likeness.shape)
        score = max(0.0, float(likeness[best]))
        return Verdict(score >= rule.threshold, score, rule.examples[int(best[0])][:FINDING_CHARACTERS])

    def _embedded(self, examples: tuple[str, ...]) -> Floats:
        known = self._examples.get(examples)
        if known is None:
            parts = [examples[i : i + EXAMPLES_AT_ONCE] for i in range(0, len(examples), EXAMPLES_AT_ONCE)] or [("",)]
            known = self._examples[examples] = np.concatenate([self._encoder.encode(part) for part in parts])
            if len(self._examples) > CACHED_RULES:
                self._examples.popitem(last=False)
        self._examples.move_to_end(examples)
        return known
