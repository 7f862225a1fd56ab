"""Questions that ask for the same, and such as only look like it."""

import pytest

from headrace_guard.judges.frames import Comparison
from headrace_guard.judges.likeness import LikenessJudge
from headrace_guard.judges.pool import JudgePool
from headrace_guard.judges.sentence_encoder import MOST_TOKENS, SentenceEncoder

PATIENT = 120.0
SAME = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("How do I reset my password?", "how do i reset the my password please"),
    ("Explain what a headrace is.", "Please explain what a headrace is"),
    ("Where is my order?", "Where's my order?"),
]
OTHER = [
    ("Convert dollars to euros", "Convert euros to dollars"),
    ("Is the buyer liable to the seller?", "Is the seller liable to the buyer?"),
    ("Is it safe to eat this mushroom?", "Is it not safe to eat this mushroom?"),
    ("Does the dog bite the man?", "Does the man bite the dog?"),
    ("How do I transfer money from savings to checking?", "How do I transfer money from checking to savings?"),
]
"""Each pair is alike by more than 0.98."""
OTHER_WORD = [
    ("Is aspirin safe before surgery?", "Is aspirin safe after surgery?"),
    ("How do I turn the alarm on?", "How do I turn the alarm off?"),
    ("List the order ascending", "List the order descending"),
]
LONG = "The tenant signed the lease in spring and has paid the rent each month since, late only once. " * 3


@pytest.fixture(scope="module")
def judge() -> LikenessJudge:
    return LikenessJudge(SentenceEncoder())


def alike(judge: LikenessJudge, one: str, other: str, *, least: float, same_words: bool) -> float | None:
    found = judge.nearest(judge.pack(one), [judge.pack(other)], least=least, same_words=same_words, most=1)
    return found[0][1] if found else None


def test_what_says_little_may_differ(judge: LikenessJudge) -> None:
    for one, other in SAME:
        similarity = alike(judge, one, other, least=0.9, same_words=True)
        assert similarity is not None, (one, other)
        assert 0.9 <= similarity <= 1.0


def test_the_same_words_in_another_order_or_denied_are_another_question(judge: LikenessJudge) -> None:
    for one, other in OTHER:
        assert float(judge._encoder.encode([one])[0] @ judge._encoder.encode([other])[0]) > 0.98
        for same_words in (True, False):
            assert alike(judge, one, other, least=0.9, same_words=same_words) is None, (one, other)


def test_one_other_word_is_another_question(judge: LikenessJudge) -> None:
    for one, other in OTHER_WORD:
        assert alike(judge, one, other, least=0.0, same_words=True) is None, (one, other)
    assert alike(judge, LONG + "He moves to Paris.", LONG + "He moves to London.", least=0.9, same_words=True) is None


def test_where_other_words_may_stand_the_similarity_decides(judge: LikenessJudge) -> None:
    pair = ("How do I cancel my subscription?", "How to cancel my subscription?")
    assert alike(judge, *pair, least=0.97, same_words=True) is None
    assert alike(judge, *pair, least=0.97, same_words=False) is not None
    assert alike(judge, *pair, least=0.999, same_words=False) is None
    for one, other in OTHER_WORD:
        assert alike(judge, one, other, least=0.97, same_words=False) is None, (one, other)


def test_what_is_not_read_whole_is_like_nothing(judge: LikenessJudge) -> None:
    assert judge.pack("word " * (MOST_TOKENS - 2))
    assert judge.pack("word " * (MOST_TOKENS + 1)) == b""
    assert judge.pack("What is \U0001f30a?") == b"", "to the encoder all characters that it does not know are one"
    assert judge.nearest(b"", [judge.pack("word")], least=0.0, same_words=False, most=1) == []


def test_the_most_alike_come_first(judge: LikenessJudge) -> None:
    texts = ["Where's my order?", "Where is my order?", "Where is the my order", "When is my order?"]
    known = [judge.pack(text) for text in texts]
    found = judge.nearest(judge.pack("Where is my order?"), known, least=0.9, same_words=True, most=3)
    assert found[0][0] == 1
    assert found[0][1] > 0.999
    assert [similarity for _, similarity in found] == sorted((s for _, s in found), reverse=True)
    assert 3 not in [index for index, _ in found]


async def test_a_child_compares_beside_judging() -> None:
    async with JudgePool() as pool:
        first = await pool.compare(Comparison("Where is my order?"), deadline_seconds=PATIENT)
        assert (len(first.packed) > 0, first.nearest) == (True, ())
        question = Comparison("Where's my order?", (first.packed,), least=0.9)
        again = await pool.compare(question, deadline_seconds=PATIENT)
        ((index, similarity),) = again.nearest
        assert (index, 0.9 < similarity < 1.0) == (0, True)
