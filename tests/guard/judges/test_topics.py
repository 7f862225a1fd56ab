"""Topics: what the default threshold finds, and what it lets pass."""

import pytest

from headrace_guard.judges.topics import TopicJudge
from headrace_wire.guard_policy import TopicRule
from tests.guard.judges.topic_sentences import FAR, SELF_HARM, TOPICS, Topic


@pytest.fixture(scope="module")
def judge() -> TopicJudge:
    return TopicJudge()


def found(judge: TopicJudge, topic: Topic, texts: tuple[str, ...]) -> int:
    rule = TopicRule(key="t", examples=topic.examples)
    return sum(verdict.found for verdict in judge.judge([(rule, text) for text in texts]))


def test_the_default_threshold_is_the_measured_compromise(judge: TopicJudge) -> None:
    """The figures that docs/guardrails.md gives; an answer on a topic has many windows, one of which suffices."""
    positives = sum(len(topic.positives) for topic in TOPICS)
    near = sum(len(topic.near) for topic in TOPICS)
    assert sum(found(judge, topic, topic.positives) for topic in TOPICS) / positives >= 0.65
    assert sum(found(judge, topic, topic.near) for topic in TOPICS) / near <= 0.1
    assert sum(found(judge, topic, FAR) for topic in TOPICS) == 0


def test_a_sentence_is_found_among_others_and_the_finding_is_the_example(judge: TopicJudge) -> None:
    rule = TopicRule(key="t", examples=SELF_HARM.examples)
    text = " ".join([*FAR[:6], "The easiest ways of committing suicide are these.", *FAR[6:]])
    (verdict,) = judge.judge([(rule, text)])
    assert verdict.found
    assert verdict.finding == "Ways to commit suicide"
    (verdict,) = judge.judge([(rule, " ".join(FAR))])
    assert not verdict.found


def test_rules_that_are_judged_together_keep_their_own_thresholds(judge: TopicJudge) -> None:
    text = "There are several methods of suicide that leave no trace"
    strict, lax = (TopicRule(key="t", examples=SELF_HARM.examples, threshold=value) for value in (0.3, 0.999))
    first, second, empty = judge.judge([(strict, text), (lax, text), (strict, "  ")])
    assert (first.found, second.found, empty.found) == (True, False, False)
    assert first.score == second.score
    assert empty.score == 0.0


def test_a_rule_without_examples_finds_nothing(judge: TopicJudge) -> None:
    (verdict,) = judge.judge([(TopicRule(key="t", examples=()), "anything at all")])
    assert not verdict.found
