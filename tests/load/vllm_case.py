"""The real engine: `vllm bench serve` against `vllm serve`, and against Headrace with the same model and flags.

One engine runs at a time; the order alternates between rounds. Both servers get the environment that a worker gives its
engine, and the arguments that it starts its engine with.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.report import Row
from tests.load.stack import HOST
from tests.load.vllm_client import Outcome, ask
from tests.load.vllm_systems import SYSTEMS, running

MODES: Mapping[str, tuple[float, dict[str, Any]]] = {
    "greedy": (0.0, {}),
    "sampled": (1.0, {}),
    "seeded": (1.0, {"seed": 7}),
}
"""How tokens are chosen: temperature, and what else is in the request. Headrace gives every sampled request a seed."""

Progress = Callable[[str], None]


class VllmLoad(Struct, frozen=True):
    """What is asked of both systems."""

    model: Path
    """A model's folder: nothing is downloaded."""
    concurrencies: tuple[int, ...] = (1, 8, 32)
    modes: tuple[str, ...] = tuple(MODES)
    prompts_per_slot: int = 10
    """Requests of a measurement, for each of its concurrent slots."""
    least_prompts: int = 20
    input_tokens: int = 128
    output_tokens: int = 128
    max_model_len: int = 2048

    @property
    def deployment(self) -> DeploymentConfig:
        """The model as a Headrace deployment; `vllm serve` gets its flags from the same."""
        return DeploymentConfig(
            id=self.name,
            name=self.name,
            model=str(self.model),
            engine=EngineKind.VLLM,
            max_model_len=self.max_model_len,
            max_num_seqs=max(8, *self.concurrencies),
        )

    @property
    def name(self) -> str:
        """The model's public name, on both sides."""
        return self.model.name.lower()

    @property
    def cells(self) -> list[tuple[str, int]]:
        """What is measured of each system: mode and concurrency."""
        return [(mode, concurrency) for mode in self.modes for concurrency in self.concurrencies]


class VllmMeasurement(Struct, frozen=True):
    """One run of `vllm bench serve`."""

    system: str
    mode: str
    concurrency: int
    completed: int
    output_tokens: int
    output_throughput: float
    """Tokens per second."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float
    cpu_us_per_token: dict[str, float]
    """By process: `engine` is EngineCore, `front` what is between it and the client."""

    @property
    def front_us_per_token(self) -> float:
        """CPU per token of everything but the engine."""
        return sum(value for name, value in self.cpu_us_per_token.items() if name != "engine")


def run_rounds(load: VllmLoad, *, rounds: int, progress: Progress) -> list[VllmMeasurement]:
    """Measures both systems `rounds` times."""
    done = []
    for number in range(1, rounds + 1):
        for system in SYSTEMS if number % 2 else reversed(SYSTEMS):
            progress(f"{load.name}, round {number} of {rounds}: {system}")
            with running(system, load.deployment, name=load.name) as server:
                done += measure(load, system, server.port, server.key, seed=number, pids=server.pids)
    return done


def measure(
    load: VllmLoad, system: str, port: int, key: str, *, seed: int, pids: Mapping[str, Sequence[int]] | None = None
) -> list[VllmMeasurement]:
    """Runs `vllm bench serve` once for each cell.

    Raises:
        BenchFailedError: It failed, or one of its requests.
    """
    runs = [_arguments(load, port, mode, concurrency, seed=seed) for mode, concurrency in load.cells]
    outcomes = ask(runs, key=key, pids=pids)
    return [
        _measurement(load, system, mode, concurrency, outcome)
        for (mode, concurrency), outcome in zip(load.cells, outcomes, strict=True)
    ]


def table_rows(load: VllmLoad, measured: Sequence[VllmMeasurement]) -> list[Row]:
    """Returns the table's lines: for each cell and figure both systems, then their ratio round by round."""
    figures: list[tuple[str, Callable[[VllmMeasurement], float], dict[str, float]]] = [
        ("output tok/s", lambda one: one.output_throughput, {"at_least": 0.97}),
        ("TTFT p50 ms", lambda one: one.ttft_p50_ms, {}),
        ("TTFT p95 ms", lambda one: one.ttft_p95_ms, {"at_most": 1.10}),
        ("TPOT p50 ms", lambda one: one.tpot_p50_ms, {"at_most": 1.05}),
        ("engine CPU us/token", lambda one: one.cpu_us_per_token.get("engine", 0.0), {}),
        ("other CPU us/token", lambda one: one.front_us_per_token, {}),
    ]
    rows = []
    for mode, concurrency in load.cells:
        both = [
            [one for one in measured if (one.system, one.mode, one.concurrency) == (system, mode, concurrency)]
            for system in SYSTEMS
        ]
        for label, figure, target in figures:
            bare, ours = ([figure(one) for one in column] for column in both)
            ratios = [mine / theirs if theirs else 0.0 for theirs, mine in zip(bare, ours, strict=True)]
            rows.append(Row(f"{mode}, c={concurrency}  {label}", [bare, ours, ratios], **target, judged=2))
        parts = sorted({name for one in both[1] for name in one.cpu_us_per_token} - {"engine"})
        rows += [Row(f"    of it {name}", [[], [one.cpu_us_per_token[name] for one in both[1]], []]) for name in parts]
    return rows


def _measurement(load: VllmLoad, system: str, mode: str, concurrency: int, outcome: Outcome) -> VllmMeasurement:
    result = outcome.result
    tokens = result["total_output_tokens"] + _warm_ups(concurrency) * load.output_tokens
    return VllmMeasurement(
        system,
        mode,
        concurrency,
        result["completed"],
        result["total_output_tokens"],
        result["output_throughput"],
        result["p50_ttft_ms"],
        result["p95_ttft_ms"],
        result["p50_tpot_ms"],
        result["p99_itl_ms"],
        {name: seconds / tokens * 1e6 for name, seconds in outcome.cpu_seconds.items()},
    )


def _warm_ups(concurrency: int) -> int:
    return max(2, concurrency)


def _arguments(load: VllmLoad, port: int, mode: str, concurrency: int, *, seed: int) -> list[str]:
    temperature, body = MODES[mode]
    options = {
        "backend": "openai-chat",
        "base-url": f"http://{HOST}:{port}",
        "endpoint": "/v1/chat/completions",
        "model": load.name,
        "tokenizer": load.model,
        "dataset-name": "random",
        "random-input-len": load.input_tokens,
        "random-output-len": load.output_tokens,
        "num-prompts": max(load.least_prompts, load.prompts_per_slot * concurrency),
        "max-concurrency": concurrency,
        "num-warmups": _warm_ups(concurrency),
        "temperature": temperature,
        # A prompt seen before would be in the prefix cache.
        "seed": 10_000 * seed + 100 * list(MODES).index(mode) + concurrency,
        "percentile-metrics": "ttft,tpot,itl",
        "metric-percentiles": "50,95,99",
        "extra-body": msgspec.json.encode(body).decode(),
    }
    return [text for name, value in options.items() for text in (f"--{name}", str(value))] + [
        "--ignore-eos",
        "--disable-tqdm",
    ]
