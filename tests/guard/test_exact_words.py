"""What two questions must share letter by letter."""

import pytest

from headrace_guard.exact_words import exact_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("How do I reset my password?", []),
        ("Where's my order? “Soon”, they said.", []),
        ("What was revenue in 2023?", ["2023"]),
        ("What is 12*13, or 12 + 13?", ["12*13", "12", "+", "13"]),
        ("Does the API of iPhone use foo_bar?", ["API", "iPhone", "foo_bar"]),
        ("Ist das schon schön?", ["schön"]),
        ("水から 🌊?", ["水から", "🌊"]),
        ("scho\u0308n", ["sch\u00f6n"]),
        ("", []),
    ],
)
def test_all_but_plain_english_words(text: str, words: list[str]) -> None:
    assert exact_words(text) == words
