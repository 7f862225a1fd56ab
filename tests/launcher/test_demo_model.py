"""The demo model, made for real: download, conversion, and that what comes out speaks English."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_launcher.demo_model import STEPS, ensure_demo_model
from tests.support.environment import SupportEnvironment, child_environment

ASK = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
turns = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**prompt, do_sample=False, max_new_tokens=12)[0, prompt["input_ids"].shape[1]:]
print(tokenizer.decode(answer, skip_special_tokens=True))
"""


@pytest.fixture(scope="module")
def models_dir(support_environment: SupportEnvironment) -> Iterator[Path]:
    """Half a gigabyte, so not among the folders that pytest keeps."""
    support_environment.cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=support_environment.cache_dir) as folder:
        yield Path(folder)


@pytest.mark.engine
def test_model_is_made_once_and_answers(models_dir: Path) -> None:
    leftover = models_dir / ".making-killed"
    leftover.mkdir()
    steps: list[str] = []
    model = ensure_demo_model(models_dir, progress=steps.append)
    assert steps == list(STEPS)
    assert [path.name for path in models_dir.iterdir()] == [model.name], "nothing half-made is left"
    assert json.loads((model / "config.json").read_text())["dtype"] == "float32"

    steps.clear()
    assert ensure_demo_model(models_dir, progress=steps.append) == model
    assert steps == []

    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(model)],
        env=child_environment(HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Paris" in asked.stdout
