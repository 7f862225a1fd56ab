from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace_worker.simulated_tokenizer import built_in_tokenizer
from headrace_worker.text_decoder import TextDecoder

TEXTS = (
    "Plain words, then more.",
    "สวัสดีครับ ยินดีต้อนรับสู่ระบบ",
    "你好\uff0c世界。日本語の文章です。한국어 문장",
    "👩‍👩‍👧‍👦 family, 🇨🇭 flag, 👍🏽 skin, e\u0301 combining, ❤️ heart",
    "\u200b\u00a0\t\n\n  spaces  \r\n",
    "naïve café — \u2018quotes\u2019 … \U0001f9d1‍\U0001f680",
    "",
)


def sentencepiece_like() -> Tokenizer:
    """A tokenizer that marks words with ▁ and falls back to bytes, as Llama 2's does."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁river", "lo", "▁a"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@pytest.fixture(scope="module")
def smollm(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


def token(tokenizer: Tokenizer, text: str) -> int:
    found = tokenizer.token_to_id(text)
    assert found is not None
    return found


BYTES = built_in_tokenizer()
PIECES = sentencepiece_like()


def streamed(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    decoder = TextDecoder(tokenizer, prompt)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_equal_the_text(smollm: Tokenizer, text: str) -> None:
    for tokenizer in (smollm, BYTES):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert "".join(streamed(tokenizer, ids)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_part_of_a_character(text: str) -> None:
    ids = BYTES.encode(text, add_special_tokens=False).ids  # one token per byte
    position = 0
    for piece in streamed(BYTES, ids):
        assert text.startswith(piece, position)
        position += len(piece)
    assert position == len(text)


@given(st.text())
def test_any_text_byte_by_byte(text: str) -> None:
    ids = BYTES.encode(text, add_special_tokens=False).ids
    assert "".join(streamed(BYTES, ids)) == text


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=40))
def test_any_bytes_equal_the_whole_decoding(ids: list[int]) -> None:
    whole = BYTES.decode(ids, skip_special_tokens=True)
    assert "".join(streamed(BYTES, ids)) == whole


@given(st.lists(st.integers(0, PIECES.get_vocab_size() - 1), max_size=30))
@example([0xF1, 0xA0, 0x81])
@example([258, 0xE3, 0x82])
def test_byte_fallback_never_fails(ids: list[int]) -> None:
    pieces = streamed(PIECES, ids)
    assert all(isinstance(piece, str) for piece in pieces)


def test_an_incomplete_end_is_shown_only_at_the_end() -> None:
    ids = BYTES.encode("ok 👍", add_special_tokens=False).ids[:-1]
    pieces = streamed(BYTES, ids)
    assert "".join(pieces[:-1]) == "ok "
    assert pieces[-1] == "\N{REPLACEMENT CHARACTER}"


def test_the_first_word_after_a_prompt_keeps_its_space() -> None:
    hello, river = token(PIECES, "▁Hello"), token(PIECES, "▁river")
    assert "".join(streamed(PIECES, [river], prompt=[hello])) == " river"
    assert "".join(streamed(PIECES, [river])) == "river"


def test_a_prompt_cut_in_a_character_does_not_leak() -> None:
    prompt = BYTES.encode("secret 👍", add_special_tokens=False).ids[:-1]
    answer = BYTES.encode("fine", add_special_tokens=False).ids
    assert "".join(streamed(BYTES, answer, prompt=prompt)) == "fine"


def test_special_tokens_have_no_text() -> None:
    end = token(BYTES, "<|im_end|>")
    ids = [*BYTES.encode("a", add_special_tokens=False).ids, end, *BYTES.encode("b", add_special_tokens=False).ids, end]
    assert "".join(streamed(BYTES, ids)) == "ab"
