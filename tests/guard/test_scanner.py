"""What goes out, when, and what stands in its place."""
# ruff: noqa: RUF001

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_guard.scanner import MOST_HELD, BoundRule, Scanner, TextGuard
from headrace_wire.guard_policy import Action, PersonalDataKind
from tests.guard.rules import EVERY_KIND, length, patterns, personal_data, words

CARD = "4111 1111 1111 1111"


def pieces(scanner: Scanner, cut: Sequence[str]) -> tuple[list[str], TextGuard]:
    guard = scanner.open()
    return [*(guard.push(piece) for piece in cut), guard.flush()], guard


def test_innocent_text_passes_at_once() -> None:
    text = "An ordinary answer, of course; nothing else."
    rules = [words("zebra crossing"), patterns(r"\bxyz\d+"), personal_data(PersonalDataKind.CREDIT_CARD)]
    out, guard = pieces(Scanner(rules), text)
    assert out == [*text, ""]
    assert (guard.hits, guard.block, guard.held) == ([], None, 0)


def test_only_what_can_become_a_match_waits() -> None:
    out, _ = pieces(Scanner([words("evil plan", action=Action.BLOCK)]), ["The ev", "i", "l pla", "t", "e. "])
    assert out == ["The ", "", "", "evil plat", "e. ", ""]


def test_last_word_waits_for_what_comes_behind_it() -> None:
    scanner = Scanner([words("evil")])
    assert pieces(scanner, ["an evil", "doer"])[0] == ["an ", "evildoer", ""]
    assert pieces(scanner, ["an evil", " man"])[0] == ["an ", "⟦WORDS⟧ man", ""]
    assert pieces(scanner, ["an evil"])[0] == ["an ", "⟦WORDS⟧"]


def test_block_ends_the_text_before_what_was_found() -> None:
    scanner = Scanner([words("evil plan", action=Action.BLOCK, whole_words=False)])
    out, guard = pieces(scanner, ["my ev", "il p", "lan is", " secret"])
    assert out == ["my ", "", "", "", ""]
    assert guard.block is not None
    assert (guard.block.start, guard.block.end, guard.block.text) == (3, 12, "evil plan")
    assert guard.hits == [guard.block]
    assert guard.held == 0


def test_block_does_not_wait_for_the_longest_match() -> None:
    guard = Scanner([patterns("ab+", action=Action.BLOCK)]).open()
    guard.push("xabb")
    assert guard.block is not None
    assert guard.block.text == "ab"


def test_block_waits_for_whoever_decides() -> None:
    scanner = Scanner([personal_data(PersonalDataKind.CREDIT_CARD, action=Action.BLOCK)])
    out, guard = pieces(scanner, [f"no. {CARD}", "1111"])
    assert (out, guard.block) == (["no. ", f"{CARD}1111", ""], None)
    out, guard = pieces(scanner, [f"no. {CARD}", "."])
    assert out == ["no. ", "", ""]
    assert guard.block is not None
    assert guard.block.text == CARD


def test_of_several_the_strictest_acts() -> None:
    rules = [
        words("evil plan", action=Action.FLAG, name="flag"),
        words("an evil", action=Action.MASK, name="mask"),
        words("plan B", action=Action.BLOCK, name="block"),
    ]
    scanned = Scanner(rules).scan("it is an evil plan B, I say")
    assert scanned.text == "it is ⟦MASK⟧ "
    assert scanned.block is not None
    assert [hit.bound.rule.name for hit in scanned.hits] == ["mask", "flag", "block"]


def test_overlapping_masks_are_one() -> None:
    rules = [words("one two", name="first"), words("two three", name="second"), words("two", name="third")]
    scanned = Scanner(rules).scan("zero one two three four two five")
    assert scanned.text == "zero ⟦FIRST⟧ four ⟦THIRD⟧ five"
    assert len(scanned.hits) == 4


def test_mask_begins_as_soon_as_it_is_certain() -> None:
    scanner = Scanner([patterns("ab|bcd", mask="#")])
    assert pieces(scanner, ["xa", "b", "c", "d", "ab", "c", "x"])[0] == ["x", "#", "", "", "#", "", "cx", ""]


def test_flags_and_shadows_hold_and_change_nothing() -> None:
    rules = [
        words("evil plan", action=Action.FLAG),
        words("evil plan", action=Action.BLOCK, is_shadow=True),
        patterns("pl.*", action=Action.MASK, is_shadow=True),
        length(3, is_shadow=True),
    ]
    text = "the evil plan"
    out, guard = pieces(Scanner(rules), text)
    assert out == [*text, ""]
    assert guard.block is None
    assert [(hit.finding, hit.text) for hit in guard.hits] == [
        ("length", ""), ("evil plan", "evil plan"), ("evil plan", "evil plan"), ("pl.*", "plan"),
    ]  # fmt: skip


def test_no_character_is_split() -> None:
    scanner = Scanner([words("bad", mask="#", whole_words=False)])
    for text, masked in {
        "bad\u0301\u0323x": "#x",
        "ba\u0301d\ufe0f": "#",
        "bad\u200d\U0001f469": "#\U0001f469",
        r"x\bad": "x#",
        r"a\\bad b": "a# b",
        r"\u0062ad": "#",
        r"ba\u0064": "#",
        r"\ud835\udc1bad": "#",
    }.items():
        assert scanner.scan(text).text == masked
        assert "".join(pieces(scanner, text)[0]) == masked


def test_no_escape_is_split_by_what_ends_or_blocks_in_it() -> None:
    scanner = Scanner([patterns(r"a\\", "bc", r"ca\\", mask="#")])
    for text, masked in {
        r"xa\nb": "x#b",
        r"xa\u0041b": "x#b",
        r"xa\eb": "x#eb",
        "xa\\": "x#",
        r"xbca\nb": "x#b",
    }.items():
        assert scanner.scan(text).text == masked
        assert "".join(pieces(scanner, text)[0]) == masked
    assert pieces(scanner, ["xbca\\", "nz"])[0] == ["x#", "z", ""]
    out, guard = pieces(Scanner([words("bad", whole_words=False, action=Action.BLOCK)]), r"x\ubad")
    assert "".join(out) == "x"
    assert guard.block is not None


@pytest.mark.parametrize(
    ("listed", "text", "masked"),
    [
        ((r"a\sbb", "n[bc]+"), r"xa\nbb.", "x#."),
        ((r"a\sbb", "n[bc]+"), r"xa\nbc.", "xa#."),
        ((r"a?[n\n]b",), r"xa\nb.", "x#."),
        ((r"(?:a\\n|\n)c",), r"xa\nc.", "x#."),
        (("bad",), r"\u00\u0062ad \ud835\u0062ad \\\u0062ad", r"\u00# # #"),
        ((r"a\nb", r"a\\nb"), r"xa\nb.", "x#."),
        ((r"\bc\b",), r"\tc\n b\c", r"\t#\n b\#"),
    ],
)
def test_both_readings_of_an_escape_count(listed: tuple[str, ...], text: str, masked: str) -> None:
    scanner = Scanner([patterns(*listed, mask="#")])
    assert scanner.scan(text).text == masked
    assert "".join(pieces(scanner, text)[0]) == masked


def test_half_an_escape_waits() -> None:
    scanner = Scanner([words("bad")])
    assert pieces(scanner, ["a\\", "u0", "041", "."])[0] == ["a", "", "\\u0041", ".", ""]
    assert pieces(scanner, [r"\ud83d", r"\ude", "00", "."])[0] == ["", "", r"\ud83d\ude00", ".", ""]
    assert pieces(scanner, ["C:\\", "home \\", "LaTeX", "\\"])[0] == ["C:", "\\home ", "\\LaTeX", "", "\\"]


def test_nothing_waits_for_an_escape_where_nothing_would_change() -> None:
    assert pieces(Scanner([words("bad", action=Action.FLAG)]), ["a\\", "n"])[0] == ["a\\", "n", ""]


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_no_pattern_keeps_a_text_back(size: int) -> None:
    text = "x<" + "a" * 3000 + " end"
    out, guard = "", Scanner([patterns("<.+>", action=Action.BLOCK)]).open()
    for at in range(0, len(text), size):
        out += guard.push(text[at : at + size])
        assert guard.held <= MOST_HELD
    assert out + guard.flush() == text


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_end_of_what_began_too_long_ago_is_still_found(size: int) -> None:
    text = "x<" + "a" * 3000 + "> end"
    guard = Scanner([patterns("<.+>", action=Action.BLOCK)]).open()
    out = "".join(guard.push(text[at : at + size]) for at in range(0, len(text), size)) + guard.flush()
    assert out == text[: 3002 - MOST_HELD]
    assert guard.block is not None
    assert guard.block.text == "a" * MOST_HELD + ">"


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_long_match_is_masked_to_its_end(size: int) -> None:
    text = "x<" + "a" * 3000 + " end> rest"
    guard = Scanner([patterns("<[^>]+", mask="#")]).open()
    out = "".join(guard.push(text[at : at + size]) for at in range(0, len(text), size)) + guard.flush()
    assert out == "x#> rest"
    (hit,) = guard.hits
    assert (hit.start, hit.end) == (1, 3006)
    assert hit.text == text[3006 - MOST_HELD : 3006]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    ("rules", "out", "is_blocked"),
    [
        ([length(10)], "0123456789", True),
        ([length(10, Action.MASK)], "0123456789⟦LENGTH⟧", False),
        ([length(10, Action.FLAG)], "0123456789abc", False),
        ([length(13)], "0123456789abc", False),
        ([length(10), length(4, Action.FLAG), length(10, Action.MASK)], "0123456789", True),
        ([length(10), words("789", whole_words=False, mask="#")], "0123456#", True),
        ([length(10), words("789a", whole_words=False)], "0123456789", True),
        ([length(10), words("45", whole_words=False, action=Action.BLOCK)], "0123", True),
    ],
)
def test_length(size: int, rules: list[BoundRule], out: str, is_blocked: bool) -> None:
    text = "0123456789abc"
    released, guard = pieces(Scanner(rules), [text[at : at + size] for at in range(0, len(text), size)])
    assert "".join(released) == out
    assert (guard.block is not None) == is_blocked


RULES: list[list[BoundRule]] = [
    [words("evil plan", "bad", "plan b"), patterns(r"\bfoo\d{2,}", r"a.{0,3}c", action=Action.FLAG)],
    [words("bad", whole_words=False, mask="#"), patterns(r"(?:ab)+c?", r"<[^>]*>", r"\w+@x", mask="@")],
    [personal_data(*EVERY_KIND, phone_regions=("DE", "US"))],
    [personal_data(*EVERY_KIND, action=Action.FLAG), words("plan", action=Action.BLOCK)],
    [patterns(r"[a-c]{2,4}$", r"^\W+b", action=Action.BLOCK), patterns("aa|aaa.", mask='"')],
    [words("क", "bad", "ab", whole_words=False), length(12, Action.MASK)],
    [patterns(r"\\b.d", r"n[ab]+", "\n.a", "bc", r"ca\\", mask="#"), words(r"C:\bad", "b", mask="%")],
]
SCANNERS = [Scanner(rules) for rules in RULES]
PLANTED = [
    *(
        "evil plan",
        "еvіl\u200b рlаn",
        "b\u0301ad",
        "bad",
        "foo123",
        "abab",
        "<tag>",
        "aaa",
        "plan b",
        "कि",
        "ﬁ",
        "\ufe0f",
    ),
    *(
        CARD,
        "4111111111111111",
        "DE89 3704 0044 0532 0130 00",
        "me@example.com",
        "+49 30 123456",
        "10.0.0.1",
        "fe80::1",
    ),
    *("https://a.bc/d?e", "00:1b:44:11:3a:b7", "078-05-1120", "0x52908400098527886E0F7030069857D2E4169EE7", "@x"),
    *("\\n", "\\", "\\\\", r"\u0062", r"\ud835\udc1b", r"\u00", '"', '{"', '":', "\U0001f469\u200d\U0001f4bb"),
]
LETTERS = st.text("abcfn1 .\n-\\@<>\u0301\u200bАa", max_size=4)
ANY_TEXT = st.lists(st.one_of(st.sampled_from(PLANTED), LETTERS), max_size=8).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SCANNERS), ANY_TEXT, st.lists(st.integers(0, 60), max_size=6))
@example(SCANNERS[1], r"\u0062ad", [3])
@example(SCANNERS[6], "b\u0301\\", [])
@example(SCANNERS[0], "bad\u200b x", [])
def test_what_is_released_depends_on_the_text_alone(scanner: Scanner, text: str, cuts: list[int]) -> None:
    guard = scanner.open()
    released = ["", *(guard.push(character) for character in text)]
    total = "".join(released) + guard.flush()
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    other, out = scanner.open(), ""
    for start, end in pairwise(borders):
        out += other.push(text[start:end])
        # After the same characters, the same has gone out; so a replayed prefix leads to where it led before.
        assert out == "".join(released[: end + 1])
    assert out + other.flush() == total
    assert other.block == guard.block
    assert sorted(map(repr, other.hits)) == sorted(map(repr, guard.hits))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SCANNERS), ANY_TEXT)
def test_what_is_not_masked_is_what_came(scanner: Scanner, text: str) -> None:
    """Every hit that counts lies in a mask or behind the end; all else goes out as it came."""
    scanned = scanner.scan(text)
    kept = [True] * len(text)
    for hit in scanned.hits:
        assert text[hit.start : hit.end] == hit.text or hit.finding == "length"
        if hit.action is not Action.FLAG:
            kept[hit.start : hit.end] = [False] * (hit.end - hit.start)
    if all(kept):
        assert scanned.text == text


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SCANNERS), ANY_TEXT)
@example(Scanner([patterns(r"a.{3}b|.*c.{4}", mask="#")]), "aaaaabbcab1c2bb12345aaabbb")
def test_fewer_threads_find_the_same(scanner: Scanner, text: str) -> None:
    with pytest.MonkeyPatch.context() as few:
        few.setattr("headrace_guard.readings.FEW_THREADS", 0)
        thinned = scanner.scan(text)
    assert thinned == scanner.scan(text)


def test_long_text_costs_the_same_per_character_as_a_short_one() -> None:
    """Work that grew with the square of the text would take hours."""
    rules = [
        patterns("[a-z]", mask="#"),
        patterns("[a-z]", ".{1,50}x", action=Action.FLAG),
        words("a b", action=Action.FLAG),
    ]
    scanned = Scanner(rules).scan("a b c " * 50_000)
    assert scanned.text == "# # # " * 50_000
    assert len(scanned.hits) == 350_000


def test_many_states_are_forgotten_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_guard.automaton.MOST_KEPT", 5)
    scanner = Scanner([words("evil plan", "bad", mask="#"), patterns(r"(?:a|b)*a(?:a|b){5}c", mask="@")])
    text = r"an evil plan \u0062ad abbabaabababbac aaabbc"
    assert "".join(pieces(scanner, text)[0]) == scanner.scan(text).text == "an # # @ aaabbc"


UNKNOWING = [Scanner(rules) for rules in RULES]
"""Scanners that never know a piece: they are used in the next test alone."""
PIECES = st.lists(
    st.one_of(st.sampled_from(PLANTED), st.sampled_from([" an", " answer", ".", "\n", "e", "1"]), LETTERS)
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(range(len(RULES))), PIECES)
@example(0, ["x", " e", "vil plan", " an", "a", "\u0301", "c"])
@example(1, ["x", "b\u0301ad", "\ufe0f", " bad", "\u0301", "ab", "abc"])
@example(3, ["x", " answer", " me@example.com", " answer", CARD, "."])
@example(5, ["x", "\u0915", "\u093f", " an", " answer", " an"])
def test_what_is_known_to_pass_is_judged_as_at_first(number: int, cut: list[str]) -> None:
    def judged(scanner: Scanner) -> tuple[list[tuple[str, int]], str, TextGuard]:
        guard = scanner.open()
        return [(guard.push(piece), guard.held) for piece in cut], guard.flush(), guard

    with pytest.MonkeyPatch.context() as never:
        never.setattr("headrace_guard.scanner.LONGEST_KNOWN", -1)
        *expected, unknowing = judged(UNKNOWING[number])
    for _ in range(2):  # pieces are learnt, and known then, those of other examples too
        *out, guard = judged(SCANNERS[number])
        assert out == expected
        assert guard.block == unknowing.block
        assert list(map(repr, guard.hits)) == list(map(repr, unknowing.hits))


def test_what_is_known_to_pass_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scanner = Scanner([words("evil plan"), personal_data(PersonalDataKind.CREDIT_CARD)])
    answer = ["An", " ordinary", " answer", ",", " of", " course", ".", "\n\n", "In", " fact", "."]
    pieces(scanner, answer)
    guard = scanner.open()
    guard.push(answer[0])
    with monkeypatch.context() as once:
        once.setattr(TextGuard, "_read", None)
        assert [guard.push(piece) for piece in answer[1:]] == answer[1:]
    assert guard.push(" an evil plan.") == " an ⟦WORDS⟧."
    (hit,) = guard.hits
    assert (hit.start, hit.end) == (len("".join(answer)) + 4, len("".join(answer)) + 13)


def test_no_more_pieces_are_known_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_guard.automaton.MOST_PIECES", 3)
    scanner = Scanner([words("evil plan", "bad", mask="#")])
    answer = ["x", " a", " b", " bad", " c", " d", "e", " a", " b", " evil", " plan", " f", " a"]
    for _ in range(3):
        assert "".join(pieces(scanner, answer)[0]) == "x a b # c de a b # f a"
        assert 0 < sum(map(len, scanner._rules.automaton._quiet.values())) <= 3


def test_rules_of_nothing_let_everything_pass() -> None:
    assert Scanner([]).scan("any\\thing\u200b").text == "any\\thing\u200b"
    assert Scanner([words()]).scan("anything").text == "anything"
