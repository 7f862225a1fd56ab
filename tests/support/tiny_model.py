"""A tiny random Llama with SmolLM2's tokenizer: the real engine on real ids at ~5 ms a token. Made once per clone.

`python -m tests.support.tiny_model FOLDER` makes it; tests ask `tiny_model_in`. Its text is gibberish, always the same.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace_launcher.demo_model import download_weights
from tests.support.environment import child_environment

# Changes with what the model is made of, so that an older one is not taken for it.
_NAME = "tiny-llama-1"


def tiny_model_in(cache_dir: Path) -> Path:
    """Returns the model's folder under `cache_dir`, making it where it is not there yet (~15 s)."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    model = cache_dir / _NAME
    with (cache_dir / f"{_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
                command = [sys.executable, "-m", "tests.support.tiny_model", str(Path(scratch) / _NAME)]
                subprocess.run(command, env=child_environment(), check=True, timeout=600, capture_output=True)
                (Path(scratch) / _NAME).rename(model)
    return model


def _make(folder: Path) -> None:
    import torch  # noqa: PLC0415  heavy, and wanted in the child process only
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        weights = download_weights(Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    _make(target)
