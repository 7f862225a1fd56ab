from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.stop_strings import StopStrings

# Few letters, so that matches, overlaps and near misses are frequent.
text_pieces = st.lists(st.text("abn\n", max_size=4), max_size=30)
stop_lists = st.lists(st.text("abn\n", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """Look at each prefix of the text in turn: the first that ends with a stop string decides, the longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def run(pieces: Sequence[str], stops: Sequence[str], *, include: bool) -> tuple[str, str | None, list[str]]:
    matcher = StopStrings(stops, include=include)
    released: list[str] = []
    for piece in pieces:
        text, match = matcher.push(piece)
        released.append(text)
        if match is not None:
            return "".join(released), match, released
    released.append(matcher.flush())
    return "".join(released), None, released


@given(text_pieces, stop_lists, st.booleans())
def test_equals_the_naive_search_wherever_the_text_is_cut(pieces: list[str], stops: list[str], include: bool) -> None:
    text, match, _ = run(pieces, stops, include=include)
    assert (text, match) == naive("".join(pieces), stops, include=include)


@given(text_pieces, stop_lists)
def test_holds_back_only_what_can_become_a_match(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    seen = released = ""
    for piece in pieces:
        text, match = matcher.push(piece)
        seen += piece
        released += text
        if match is not None:
            return
        held = seen[len(released) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_across_pieces_is_cut_out() -> None:
    assert run(["Hel", "lo\n", "\nUs", "er: x"], ["\n\nUser:"], include=False)[:2] == ("Hello", "\n\nUser:")
    assert run(["Hel", "lo\n", "\nUs", "er: x"], ["\n\nUser:"], include=True)[:2] == ("Hello\n\nUser:", "\n\nUser:")


def test_a_near_miss_is_released() -> None:
    assert run(["Hello\n", "\nUse", "ful"], ["\n\nUser:"], include=False) == (
        "Hello\n\nUseful",
        None,
        ["Hello", "", "\n\nUseful", ""],
    )


def test_empty_stops_match_nothing() -> None:
    assert run(["abc"], [""], include=False)[:2] == ("abc", None)
