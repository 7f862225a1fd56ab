"""Languages, by `py3langid` (BSD): only what it is sure of counts, and short texts give no verdict."""

import re

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import LanguageRule

FEWEST_BYTES = 50
"""Letters of a text, in UTF-8: below that, names and quotations look like other languages."""
SURE = 0.95
"""How likely it must be that the language is none of the allowed ones."""
LIKELIEST = 0.4
"""How likely one language must be; a list of names is a little of each. Close relatives share their probability."""

NO_LANGUAGE = "zxx"
"""What the model calls numbers, code and the like."""

_VARIETIES = {
    "ar": ("ary", "arz"),
    "bs": ("hr", "sr"),
    "en": ("pcm",),
    "es": ("an", "ext"),
    "fr": ("gcf", "gcr"),
    "hr": ("bs", "sr"),
    "it": ("lij", "vec"),
    "nb": ("no", "nn"),
    "nn": ("no",),
    "no": ("nn",),
    "sr": ("bs", "hr"),
    "uz": ("uzs",),
    "zh": ("wuu", "yue"),
}
"""What the model tells apart and people who allow a language mean with it, or what short texts cannot show."""

_NO_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|\w+://\S+|\S+@\S+|[\W\d_]+", re.DOTALL)


class UnknownLanguageError(Exception):
    """A rule names a language that the model does not know."""


class LanguageJudge:
    """Says how likely a text is in a language that is not allowed."""

    def __init__(self) -> None:
        """Load the model."""
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._known = frozenset(self._identifier.labels)

    def judge(self, rule: LanguageRule, text: str) -> Verdict:
        """Return the probability of all languages but the allowed ones; the finding is the likeliest's code.

        Raises:
            UnknownLanguageError: an allowed language is none that the model knows, so its texts would be found.
        """
        if unknown := [code for code in rule.allowed if code not in _VARIETIES and code not in self._known]:
            raise UnknownLanguageError(f"The language {unknown[0]!r} is not known to the model of languages.")
        prose = _NO_PROSE.sub(" ", text).strip()
        if len(prose.encode()) < FEWEST_BYTES:
            return Verdict(found=False, score=0.0)
        allowed = {
            NO_LANGUAGE,
            *rule.allowed,
            *(relative for code in rule.allowed for relative in _VARIETIES.get(code, ())),
        }
        ranking: list[tuple[str, float]] = self._identifier.rank(prose)
        code, share = ranking[0]
        score = max(0.0, 1.0 - sum(share for code, share in ranking if code in allowed))
        return Verdict(score >= SURE and share >= LIKELIEST and code not in allowed, score, code)
