"""Windows over an answer whose tokens, batches and judge are whatever comes to mind."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_guard.windows import Window, Windows

SECRET = "the spillway key"
TOKENS = [*SECRET, "x", "y z", "", "é", "water "]
"""Tokens that an answer is made of; the secret is as many of them as it has characters."""


class Reader:
    """Has windows judged by looking for the secret, one at a time, whenever the judge is free."""

    def __init__(self, *, chunk_size: int, context_size: int) -> None:
        self.windows = Windows(chunk_size=chunk_size, context_size=context_size)
        self.read = ""
        self.judged: list[Window] = []
        self.is_blocked = False
        self.under_way: Window | None = None

    def begin(self) -> None:
        if self.under_way is None and not self.is_blocked:
            self.under_way = self.windows.due()

    def end(self) -> None:
        window, self.under_way = self.under_way, None
        if window is None:
            return
        self.judged.append(window)
        if SECRET in window.text:
            self.is_blocked = True
        else:
            self.read += self.windows.passed()


answers = st.lists(st.sampled_from(TOKENS), max_size=60)
batches = st.integers(1, 3)


@given(
    before=answers,
    after=answers,
    has_secret=st.booleans(),
    chunk_size=st.integers(1, 20),
    speed=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    batch=batches,
)
def test_nothing_of_a_phrase_within_the_context_goes_out(
    before: list[str], after: list[str], has_secret: bool, chunk_size: int, speed: list[int], batch: int
) -> None:
    tokens = before + (list(SECRET) if has_secret else []) + after
    reader = Reader(chunk_size=chunk_size, context_size=len(SECRET))
    for i in range(0, len(tokens), batch):
        piece = tokens[i : i + batch]
        reader.windows.push("".join(piece), len(piece))
        reader.begin()
        if i % 3 < speed[i % len(speed)]:
            reader.end()
            reader.begin()
    reader.windows.complete()
    while not reader.is_blocked and not reader.windows.is_settled:
        reader.begin()
        reader.end()
    text = "".join(tokens)
    assert SECRET not in reader.read
    assert text.startswith(reader.read)
    assert reader.is_blocked == (SECRET in text)
    if not reader.is_blocked:
        assert reader.read == text
        assert reader.windows.held_characters == 0


@given(chunk_size=st.integers(1, 20), context_size=st.integers(0, 20), tokens=st.integers(0, 200))
def test_an_engine_that_heeds_the_limit_never_stops_for_good(chunk_size: int, context_size: int, tokens: int) -> None:
    windows = Windows(chunk_size=chunk_size, context_size=context_size)
    released = ""
    for position in range(tokens):
        if position >= windows.most_tokens:
            assert windows.due() is not None, "somebody must be asked, or nothing moves"
            released += windows.passed()
            assert position < windows.most_tokens
        windows.push("t", 1)
    windows.complete()
    while not windows.is_settled:
        windows.due()
        released += windows.passed()
    assert released == "t" * tokens


def test_a_first_window_waits_for_a_chunk_and_lets_out_all_but_the_context() -> None:
    windows = Windows(chunk_size=4, context_size=1)
    for _ in range(3):
        windows.push("a", 1)
        assert windows.due() is None
    windows.push("b", 1)
    assert windows.due() == Window("aaab", 0, 4, 4)
    assert windows.due() is None, "one at a time"
    assert windows.passed() == "aaa"
    assert windows.held_characters == 1


def test_what_an_earlier_owner_let_out_is_not_judged_again() -> None:
    windows = Windows(chunk_size=2, context_size=1)
    for token in "abcd":
        windows.push(token, 1)
    windows.skip(2)
    assert windows.due() == Window("cd", 2, 4, 4)


def test_windows_that_hold_nothing_say_only_how_far_it_is_judged() -> None:
    windows = Windows(chunk_size=2, context_size=0, holds=False)
    windows.push("ab", 2)
    assert windows.due() is not None
    assert windows.passed() == ""
    assert windows.passed_characters == 2
