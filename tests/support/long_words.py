"""A model for the simulated engine whose tokens are long words: a few of them fill a connection's buffers."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace_worker.simulated_tokenizer import SPECIAL_TOKENS

WORDS = 400
WORD_BYTES = 600
BYTES_FROM = 10_000


def long_word_model(folder: Path) -> str:
    """Write the model into a new folder; return its path. Each token of its answers has `WORD_BYTES`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (f"Ġ{number}".ljust(WORD_BYTES, "~") for number in range(WORDS))
    vocabulary = {text: number for number, text in enumerate(words)}
    # Out of the range that answers are made of: a byte of a character has no text of its own, and is no entry of a log.
    vocabulary |= {text: BYTES_FROM + number for number, text in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in sorted(set(SPECIAL_TOKENS.values()))])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)
