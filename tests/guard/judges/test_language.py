"""Languages: only what is sure counts."""

import pytest

from headrace_guard.judges.language import LanguageJudge, UnknownLanguageError
from headrace_wire.guard_policy import LanguageRule

SENTENCES = {
    "en": "The committee will meet again on Thursday to discuss the budget.",
    "de": "Der Ausschuss tritt am Donnerstag wieder zusammen und berät den Haushalt.",
    "fr": "Le comité se réunira de nouveau jeudi pour discuter du budget.",
    "es": "El comité se reunirá de nuevo el jueves para discutir el presupuesto.",
    "zh": "委员会将于星期四再次开会讨论预算问题、并通过决议。",
    "ja": "委員会は木曜日に再び集まり、予算について話し合います。",
    "ru": "Комитет соберётся снова в четверг, чтобы обсудить бюджет.",
    "ar": "ستجتمع اللجنة مرة أخرى يوم الخميس لمناقشة الميزانية.",
}
UNSURE = [
    "Ja.",
    "Paris, Berlin, Madrid, Roma, Wien",
    "The names are Müller, García, Håkansson, Nguyen and Kowalski.",
    "She ordered a croissant, a cappuccino and a pain au chocolat.",
    "In French, 'je ne sais pas' means that I do not know.",
    "```python\nfor element in sequence:\n    ergebnis.append(berechne(element))\n```",
    "`für_jedes_element_in_der_liste_berechne_das_ergebnis`",
    "1234567890 " * 20,
    "https://beispiel.example/eine/lange/adresse/mit/deutschen/woertern/darin",
]


@pytest.fixture(scope="module")
def judge() -> LanguageJudge:
    return LanguageJudge()


@pytest.mark.parametrize("code", SENTENCES)
def test_a_language_is_found_where_it_is_not_allowed(judge: LanguageJudge, code: str) -> None:
    others = tuple(sorted(SENTENCES.keys() - {code}))
    verdict = judge.judge(LanguageRule(key="l", allowed=others), SENTENCES[code])
    assert (verdict.found, verdict.finding) == (True, code)
    assert not judge.judge(LanguageRule(key="l", allowed=(code,)), SENTENCES[code]).found


@pytest.mark.parametrize("text", UNSURE)
def test_what_is_not_sure_passes(judge: LanguageJudge, text: str) -> None:
    assert not judge.judge(LanguageRule(key="l", allowed=("en",)), text).found


def test_a_language_that_the_model_does_not_know_is_not_guessed(judge: LanguageJudge) -> None:
    with pytest.raises(UnknownLanguageError, match="'co'"):
        judge.judge(LanguageRule(key="l", allowed=("en", "co")), SENTENCES["en"])
    assert not judge.judge(LanguageRule(key="l", allowed=("nb",)), SENTENCES["en"][:10]).found
