"""Abuse: the same numbers as alt-profanity-check with scikit-learn, and what it is good for."""

import io
import pickle

import pytest

from headrace_guard.judges.abuse import AbuseJudge, _Reader
from headrace_wire.guard_policy import AbuseRule

# What `profanity_check.predict_prob` of alt-profanity-check 1.9.1 says, run with scikit-learn 1.9.1.
ORIGINAL = {
    "You are an asshole and nobody likes you": 0.999831,
    "I will kill you": 0.946732,
    "shut up, moron": 0.999933,
    "what a lovely day": 0.045069,
    "The cat sat on the mat.": 0.031449,
    "The Scunthorpe council met in Penistone.": 0.046082,
    "I disagree with you, but thank you for the discussion.": 0.001662,
}
ABUSIVE = [
    "You are a complete idiot.",
    "What a bunch of morons you are.",
    "He is a worthless piece of shit.",
    "You disgusting pig, nobody likes you.",
    "Women are too dumb for this job.",
]
INNOCENT = [
    "How do I kill a process in Linux?",
    "Breast cancer screening is free for women over fifty.",
    "Gay marriage became legal in 2017.",
    "Use `git blame` to see who wrote the line.",
    "Hello, how can I help you today?",
    "这是一个测试",
    "",
]


@pytest.fixture(scope="module")
def judge() -> AbuseJudge:
    return AbuseJudge()


def test_the_numbers_are_the_originals(judge: AbuseJudge) -> None:
    rule = AbuseRule(key="a", threshold=1.0)
    assert {text: judge.judge(rule, text).score for text in ORIGINAL} == pytest.approx(ORIGINAL, abs=2e-6)


def test_the_default_threshold(judge: AbuseJudge) -> None:
    rule = AbuseRule(key="a")
    assert [text for text in ABUSIVE if not judge.judge(rule, text).found] == []
    assert [text for text in INNOCENT if judge.judge(rule, text).found] == []


def test_an_insult_is_found_among_politeness_and_its_word_named(judge: AbuseJudge) -> None:
    polite = "Thank you for the discussion, it was a pleasure to talk with all of you. "
    verdict = judge.judge(AbuseRule(key="a"), polite * 4 + "You are an idiot. " + polite * 4)
    assert (verdict.found, verdict.finding) == (True, "idiot")


class Attack:
    """What a doctored model file would hold."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run",))


def test_a_model_file_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO(pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"builtins\.print"):
        _Reader("model", file, ensure_native_byte_order=True).load()
    assert capsys.readouterr().out == ""
