"""Topics: what the default threshold finds, and what it lets pass."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace_guard.judges.pool import JudgePool
from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import TopicRule
from tests.guard.judges.topic_sentences import FAR, SELF_HARM, TOPICS, Topic


class Asked:
    """A pool without deadlines."""

    def __init__(self, pool: JudgePool) -> None:
        self._pool = pool

    async def judge(self, asked: Sequence[tuple[TopicRule, str]]) -> list[Verdict]:
        return await asyncio.gather(*(self._pool.judge(rule, text, deadline_seconds=120.0) for rule, text in asked))

    async def found(self, topic: Topic, texts: tuple[str, ...]) -> int:
        rule = TopicRule(key="t", examples=topic.examples)
        return sum(verdict.found for verdict in await self.judge([(rule, text) for text in texts]))


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    # In a child, as in production: there the sums take one thread, here they would fight for two.
    async with JudgePool() as pool:
        yield Asked(pool)


async def test_the_default_threshold_is_the_measured_compromise(asked: Asked) -> None:
    """The figures that docs/guardrails.md gives; an answer on a topic has many windows, one of which suffices."""
    positives = sum(len(topic.positives) for topic in TOPICS)
    near = sum(len(topic.near) for topic in TOPICS)
    assert sum([await asked.found(topic, topic.positives) for topic in TOPICS]) / positives >= 0.65
    assert sum([await asked.found(topic, topic.near) for topic in TOPICS]) / near <= 0.1
    assert sum([await asked.found(topic, FAR) for topic in TOPICS]) == 0


async def test_a_sentence_is_found_among_others_and_the_finding_is_the_example(asked: Asked) -> None:
    rule = TopicRule(key="t", examples=SELF_HARM.examples)
    text = " ".join([*FAR[:6], "The easiest ways of committing suicide are these.", *FAR[6:]])
    bad, good = await asked.judge([(rule, text), (rule, " ".join(FAR))])
    assert (bad.found, bad.finding) == (True, "Ways to commit suicide")
    assert not good.found


async def test_rules_that_are_judged_together_keep_their_own_thresholds(asked: Asked) -> None:
    text = "There are several methods of suicide that leave no trace"
    strict, lax = (TopicRule(key="t", examples=SELF_HARM.examples, threshold=value) for value in (0.3, 0.999))
    first, second, empty = await asked.judge([(strict, text), (lax, text), (strict, "  ")])
    assert (first.found, second.found, empty.found) == (True, False, False)
    assert first.score == pytest.approx(second.score, abs=1e-5)
    assert empty.score == 0.0


async def test_a_rule_without_examples_finds_nothing(asked: Asked) -> None:
    (verdict,) = await asked.judge([(TopicRule(key="t", examples=()), "anything at all")])
    assert not verdict.found
