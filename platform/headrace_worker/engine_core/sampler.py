"""Sampling that can be continued elsewhere: a logits processor for vLLM 0.32's first model runner.

It runs after penalties, temperature and min_p, on rows that are sampled. It draws the token itself and leaves only that
one possible, so that vLLM's own draw has no choice. The second model runner (GPU) draws by seed and position already.
"""

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from headrace_worker.engine_core.positional_draw import draw, position_key
from headrace_worker.engine_core.request_fields import SEED, TOP_K, TOP_P


class _Row:
    """What is to be known of one request in the batch. `output_ids` is vLLM's own list, which grows."""

    __slots__ = ("output_ids", "prompt_length", "seed", "top_k", "top_p")

    def __init__(self, fields: dict[str, Any], prompt_length: int, output_ids: list[int]) -> None:
        self.seed = int(fields[SEED])
        self.top_k = int(fields[TOP_K])
        self.top_p = float(fields[TOP_P])
        self.prompt_length = prompt_length
        self.output_ids = output_ids


class PositionalSampler(LogitsProcessor):  # type: ignore[misc]  # vLLM ships no types
    """Draws for requests that carry a seed of ours."""

    def __init__(self, _config: Any, _device: torch.device, _pin_memory: bool) -> None:  # noqa: ANN401
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Greedy rows do not need us."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow which request is in which row."""
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one possible token in each of our rows."""
        for index, row in self._rows.items():
            position = row.prompt_length + len(row.output_ids)
            values = logits[index].cpu().numpy()
            token = draw(values, position_key(row.seed, position), top_k=row.top_k, top_p=row.top_p)
            value = float(values[token])
            logits[index].fill_(float("-inf"))
            logits[index, token] = value
        return logits


def _row(parameters: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> _Row | None:  # noqa: ANN401  untyped
    fields = parameters.extra_args or {}
    return _Row(fields, len(prompt_ids or ()), output_ids) if SEED in fields else None
