"""Languages, by `py3langid` (BSD): only what it is sure of counts, and short texts give no verdict."""

import re

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import LanguageRule

FEWEST_BYTES = 40
"""Letters of a text, in UTF-8: below that, names and quotations look like other languages."""
SURE = 0.9
"""How likely it must be that the language is none of the allowed ones."""

_NO_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|\w+://\S+|\S+@\S+|[\W\d_]+", re.DOTALL)


class LanguageJudge:
    """Says how likely a text is in a language that is not allowed."""

    def __init__(self) -> None:
        """Load the model."""
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def judge(self, rule: LanguageRule, text: str) -> Verdict:
        """Return the probability of all languages but the allowed ones; the finding is the likeliest's code."""
        prose = _NO_PROSE.sub(" ", text).strip()
        if len(prose.encode()) < FEWEST_BYTES:
            return Verdict(found=False, score=0.0)
        ranking: list[tuple[str, float]] = self._identifier.rank(prose)
        score = max(0.0, 1.0 - sum(share for code, share in ranking if code in rule.allowed))
        return Verdict(score >= SURE and ranking[0][0] not in rule.allowed, score, ranking[0][0])
