"""The real engine: `vllm bench serve` against `vllm serve`, and against Headrace with the same model and flags.

One engine runs at a time; the order alternates between rounds. Both servers get the environment that a worker gives its
engine, and the arguments that it starts its engine with.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.report import Row
from tests.load.stack import HOST
from tests.load.vllm_client import BenchFailedError, Outcome, ask
from tests.load.vllm_systems import SYSTEMS, Server, running
from tests.support.processes import ProcessFailedError

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
    prompts_per_slot: int = 4
    """Requests of a measurement, for each of its concurrent slots."""
    least_prompts: int = 16
    most_warm_ups: int = 32
    """Requests before a measurement, of which there are as many as it has concurrent ones, two at least."""
    input_tokens: int = 128
    output_tokens: int = 128
    max_model_len: int = 2048

    @classmethod
    def few_prompts(cls, model: Path) -> "VllmLoad":
        """Returns what a model with long steps is asked in a minute and a half, engine's start included."""
        modes = ("greedy", "sampled")
        return cls(
            model,
            modes=modes,
            prompts_per_slot=1,
            least_prompts=6,
            input_tokens=64,
            output_tokens=32,
            most_warm_ups=2,
        )

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


class VllmFailure(Struct, frozen=True):
    """A system that did not answer all requests of a measurement: it died, or refused some."""

    system: str
    mode: str
    concurrency: int
    why: str
    log: str = ""


def run_rounds(load: VllmLoad, *, rounds: int, progress: Progress) -> tuple[list[VllmMeasurement], list[VllmFailure]]:
    """Measures both systems `rounds` times. One that fails is started anew for what is left to measure of it."""
    done, failures = [], []
    for number in range(1, rounds + 1):
        for system in SYSTEMS if number % 2 else reversed(SYSTEMS):
            left = load.cells
            while left:
                progress(f"{load.name}, round {number} of {rounds}: {system}, {len(left)} measurements")
                seen, failed = _part(load, system, seed=number, cells=left, progress=progress)
                done += seen
                failures += failed
                for one in failed[:1]:
                    progress(f"{system} failed, {one.mode}, {one.concurrency} at a time: {one.why}")
                left = left[len(seen) + len(failed) :]
    return done, failures


def _part(
    load: VllmLoad, system: str, *, seed: int, cells: Sequence[tuple[str, int]], progress: Progress
) -> tuple[list[VllmMeasurement], list[VllmFailure]]:
    """Starts a system and measures the cells until it fails; where it does not start, all of them have failed."""
    try:
        with running(system, load.deployment, name=load.name) as server:
            seen, failed = measure(load, system, server, seed=seed, cells=cells, progress=progress)
    except ProcessFailedError as error:
        return [], [VllmFailure(system, *cell, "it did not start", str(error)[-4000:]) for cell in cells]
    return seen, [failed] if failed is not None else []


def measure(
    load: VllmLoad, system: str, server: Server, *, seed: int, cells: Sequence[tuple[str, int]], progress: Progress
) -> tuple[list[VllmMeasurement], VllmFailure | None]:
    """Runs `vllm bench serve` once for each cell, until the system fails."""
    runs = [_arguments(load, server.port, mode, concurrency, seed=seed) for mode, concurrency in cells]
    seen: list[VllmMeasurement] = []
    try:
        for outcome in ask(runs, key=server.key, pids=server.pids):
            mode, concurrency = cells[len(seen)]
            seen.append(_measurement(load, system, mode, concurrency, outcome))
            progress(f"{system}, {mode}, {concurrency} at a time: {seen[-1].output_throughput:.0f} tok/s")
    except BenchFailedError as error:
        mode, concurrency = cells[len(seen)]
        log = f"{server.log()}\n{error}"
        why = "its server ended" if server.has_ended() else "some of its requests failed"
        return seen, VllmFailure(system, mode, concurrency, why, log[-4000:])
    return seen, None


def table_rows(load: VllmLoad, measured: Sequence[VllmMeasurement], failures: Sequence[VllmFailure] = ()) -> list[Row]:
    """Returns the table's lines: for each cell and figure both systems, then their ratio round by round."""
    figures: list[tuple[str, Callable[[VllmMeasurement], float], dict[str, float]]] = [
        ("output tok/s", lambda one: one.output_throughput, {"at_least": 0.97}),
        ("TTFT p50 ms", lambda one: one.ttft_p50_ms, {}),
        ("TTFT p95 ms", lambda one: one.ttft_p95_ms, {"at_most": 1.10}),
        ("TPOT p50 ms", lambda one: one.tpot_p50_ms, {"at_most": 1.05}),
        ("engine CPU us/token", lambda one: one.cpu_us_per_token.get("engine", 0.0), {}),
        ("other CPU us/token", lambda one: one.front_us_per_token, {}),
    ]
    rows: list[Row] = []
    for mode, concurrency in load.cells:
        rows += _failure_rows(mode, concurrency, failures)
        both = [
            [one for one in measured if (one.system, one.mode, one.concurrency) == (system, mode, concurrency)]
            for system in SYSTEMS
        ]
        if not any(both):
            continue
        # Without the other system's figures there is nothing to judge by; without ours, the target is missed.
        without_peer = bool(both[1]) and not both[0]
        for label, figure, limits in figures:
            bare, ours = ([figure(one) for one in column] for column in both)
            ratios = [mine / theirs if theirs else 0.0 for theirs, mine in zip(bare, ours, strict=False)]
            target = {} if without_peer else limits
            rows.append(
                Row(
                    f"{mode}, c={concurrency}  {label}",
                    [bare, ours, ratios],
                    target.get("at_most"),
                    target.get("at_least"),
                    judged=2,
                )
            )
        parts = sorted({name for one in both[1] for name in one.cpu_us_per_token} - {"engine"})
        rows += [Row(f"    of it {name}", [[], [one.cpu_us_per_token[name] for one in both[1]], []]) for name in parts]
    return rows


def _measurement(load: VllmLoad, system: str, mode: str, concurrency: int, outcome: Outcome) -> VllmMeasurement:
    result = outcome.result
    tokens = result["total_output_tokens"] + _warm_ups(load, concurrency) * load.output_tokens
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


def _failure_rows(mode: str, concurrency: int, failures: Sequence[VllmFailure]) -> Iterator[Row]:
    """Yield a line for each system that has no figures of a cell, and says why."""
    for system in SYSTEMS:
        why = [one.why for one in failures if (one.system, one.mode, one.concurrency) == (system, mode, concurrency)]
        if why:
            counts = [[float(len(why))] if one == system else [] for one in SYSTEMS]
            yield Row(f"{mode}, c={concurrency}  {system} FAILED: {why[0]}", [*counts, []])


def _warm_ups(load: VllmLoad, concurrency: int) -> int:
    return min(load.most_warm_ups, max(2, concurrency))


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
        "num-warmups": _warm_ups(load, concurrency),
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
