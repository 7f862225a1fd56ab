import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.api_key import ApiKeyToken, redact

TOKEN = ApiKeyToken.generate()


def test_reads_what_it_made_and_compares_by_digest() -> None:
    parsed = ApiKeyToken.parse(TOKEN.reveal())
    assert parsed == TOKEN
    assert TOKEN.matches(TOKEN.secret_sha256)
    assert not TOKEN.matches(ApiKeyToken.generate().secret_sha256)
    assert not TOKEN.matches(b"")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk-hr-",
        TOKEN.reveal() + "\n",
        " " + TOKEN.reveal(),
        TOKEN.reveal()[:-1],
        TOKEN.reveal() + "x",
        TOKEN.reveal().upper(),
        TOKEN.reveal().replace("sk-hr", "sk-or"),
        TOKEN.reveal()[:-1] + "é",
        TOKEN.reveal()[:-1] + "\u0661",
    ],
)
def test_refuses_what_has_not_exactly_the_form(text: str) -> None:
    assert ApiKeyToken.parse(text) is None


def test_shows_no_secret_unless_asked() -> None:
    assert TOKEN.secret not in f"{TOKEN} {TOKEN!r} {[TOKEN]}"
    assert TOKEN.public_id in repr(TOKEN)


@given(before=st.text(), after=st.text())
def test_no_secret_survives_in_any_text(before: str, after: str) -> None:
    text = redact(before + TOKEN.reveal() + after)
    assert TOKEN.secret not in text
    assert f"sk-hr-{TOKEN.public_id}-…" in text


@given(text=st.text())
def test_texts_without_a_key_stay(text: str) -> None:
    assert redact(text) == text
