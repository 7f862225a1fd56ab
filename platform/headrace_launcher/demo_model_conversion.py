"""Child process of `demo_model`: `python -m headrace_launcher.demo_model_conversion WEIGHTS.gguf FOLDER`."""

import sys
from pathlib import Path

from headrace_launcher.demo_model import STEPS


def convert(weights: Path, folder: Path) -> None:
    """Writes the dequantised model and its tokenizer into `folder`, printing the name of each step."""
    import torch  # noqa: PLC0415  heavy
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    _say(STEPS[1])
    tokenizer = AutoTokenizer.from_pretrained(**source)
    _say(STEPS[2])
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    _say(STEPS[3])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _say(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
