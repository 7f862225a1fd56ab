"""Sampling that can be continued elsewhere: a logits processor for vLLM 0.32's first model runner.

It runs after penalties, temperature and min_p, on rows that are sampled. Where it draws for all of them, as it does in
our engines, vLLM's own draw is left out; it would cost more than this one. Among rows that vLLM is to draw for, it
leaves only one token possible in its own. The second model runner (GPU) draws by seed and position already.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.sampler import _SAMPLING_EPS, Sampler

from headrace_worker.engine_core.positional_draw import draw, position_key
from headrace_worker.engine_core.request_fields import SEED, TOP_K, TOP_P


class _Row:
    """What is to be known of one sampled request in the batch. `output_ids` is vLLM's own list, which grows."""

    __slots__ = ("is_ours", "output_ids", "prompt_length", "seed", "top_k", "top_p")

    def __init__(self, fields: dict[str, Any], prompt_length: int, output_ids: list[int]) -> None:
        self.is_ours = SEED in fields
        self.seed = int(fields.get(SEED, 0))
        self.top_k = int(fields.get(TOP_K, 0))
        self.top_p = float(fields.get(TOP_P, 1.0))
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

    @property
    def draws_all(self) -> bool:
        """Whether there is no row that vLLM has to draw for."""
        return all(row.is_ours for row in self._rows.values())

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one possible token in each of our rows."""
        for index, token in self._drawn(logits):
            value = float(logits[index, token])
            logits[index].fill_(float("-inf"))
            logits[index, token] = value
        return logits

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a token for each row; greedy rows have any."""
        tokens = [0] * len(logits)
        for index, token in self._drawn(logits):
            tokens[index] = token
        return torch.tensor(tokens, device=logits.device)

    def _drawn(self, logits: torch.Tensor) -> Iterator[tuple[int, int]]:
        values = logits.cpu().numpy()
        for index, row in self._rows.items():
            if row.is_ours:
                key = position_key(row.seed, row.prompt_length + len(row.output_ids))
                yield index, draw(values[index], key, top_k=row.top_k, top_p=row.top_p)


def _row(parameters: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> _Row | None:  # noqa: ANN401  untyped
    fields = parameters.extra_args or {}
    if SEED not in fields and parameters.temperature < _SAMPLING_EPS:
        return None
    return _Row(fields, len(prompt_ids or ()), output_ids)


_sample = Sampler.sample


def _sample_without_drawing(
    self: Any,  # noqa: ANN401  vLLM is untyped
    logits: torch.Tensor,
    metadata: Any,  # noqa: ANN401  vLLM's SamplingMetadata
    logprobs_mode_override: Any = None,  # noqa: ANN401  vLLM's LogprobsMode
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sample as vLLM does, but for the draw where it is ours alone."""
    processors = metadata.logitsprocs.argmax_invariant
    ours = next((one for one in processors if isinstance(one, PositionalSampler)), None)
    mode = logprobs_mode_override or self.logprobs_mode
    if ours is None or metadata.all_greedy or not ours.draws_all or mode.startswith("processed"):
        sampled: tuple[torch.Tensor, torch.Tensor | None] = _sample(self, logits, metadata, logprobs_mode_override)
        return sampled
    greedy = None if metadata.all_random else self.greedy_sample(logits)
    logits = self.apply_temperature(logits, metadata.temperature, metadata.all_random)
    for processor in processors:
        if processor is not ours:
            logits = processor.apply(logits)
    tokens = ours.draw(logits)
    if greedy is not None:
        tokens = torch.where(metadata.temperature < _SAMPLING_EPS, greedy, tokens)
    return tokens, None


Sampler.sample = _sample_without_drawing
