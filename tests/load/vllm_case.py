"""The real engine: `vllm bench serve` against `vllm serve`, and against Headrace with the same model and flags.

One engine runs at a time; the order alternates between rounds. Both servers get the environment that a worker gives its
engine, and the arguments that it starts its engine with.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.config import prepare_vllm_environment
from headrace_worker.vllm_arguments import engine_arguments
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import ENGINE_START_SECONDS, HOST, running_stack
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port

SYSTEMS = ("vllm serve", "Headrace")
BENCH_SECONDS = 600.0

Progress = Callable[[str], None]


class VllmLoad(Struct, frozen=True):
    """What is asked of both systems."""

    model: Path
    """A model's folder: nothing is downloaded."""
    concurrencies: tuple[int, ...] = (1, 8)
    prompts_per_slot: int = 10
    """Requests of a measurement, for each of its concurrent slots."""
    input_tokens: int = 128
    output_tokens: int = 128
    max_model_len: int = 2048
    temperature: float = 0.0

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


class BenchFailedError(Exception):
    """A measurement is worth nothing: the tool or some of its requests failed. The message carries its output."""


class VllmMeasurement(Struct, frozen=True):
    """One run of `vllm bench serve`."""

    system: str
    concurrency: int
    completed: int
    output_tokens: int
    output_throughput: float
    """Tokens per second."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float


def run_rounds(load: VllmLoad, *, rounds: int, progress: Progress) -> list[VllmMeasurement]:
    """Measures both systems `rounds` times."""
    done = []
    for number in range(1, rounds + 1):
        for system in SYSTEMS if number % 2 else reversed(SYSTEMS):
            progress(f"{load.name}, round {number} of {rounds}: starting {system}")
            with _running(system, load) as (port, key):
                for concurrency in load.concurrencies:
                    progress(f"{load.name}, round {number} of {rounds}: {system}, concurrency {concurrency}")
                    done.append(measure(load, system, port, key, concurrency=concurrency, seed=number))
    return done


def table_rows(load: VllmLoad, measured: Sequence[VllmMeasurement]) -> list[Row]:
    """Returns the table's lines: for each concurrency and figure both systems, then their ratio round by round."""
    figures: list[tuple[str, Callable[[VllmMeasurement], float]]] = [
        ("output tok/s", lambda one: one.output_throughput),
        ("TTFT p50 ms", lambda one: one.ttft_p50_ms),
        ("TTFT p95 ms", lambda one: one.ttft_p95_ms),
        ("TPOT p50 ms", lambda one: one.tpot_p50_ms),
    ]
    rows = []
    for concurrency in load.concurrencies:
        for label, figure in figures:
            bare, ours = (
                [figure(one) for one in measured if (one.system, one.concurrency) == (system, concurrency)]
                for system in SYSTEMS
            )
            ratios = [mine / theirs for theirs, mine in zip(bare, ours, strict=True)]
            rows.append(Row(f"c={concurrency}  {label}", [bare, ours, ratios]))
    return rows


@contextmanager
def _running(system: str, load: VllmLoad) -> Iterator[tuple[int, str]]:
    """Starts a system; yields its port and API key."""
    if system == "Headrace":
        with running_stack(load.deployment, Placement(None, None)) as stack:
            yield stack.port, stack.api_key
        return
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Process(_serve_command(load, port), name="vllm serve", environ=_serve_environment(folder)) as server,
    ):
        server.wait_for_line("Application startup complete", timeout=ENGINE_START_SECONDS)
        yield port, "none"


def _serve_command(load: VllmLoad, port: int) -> list[str]:
    arguments = engine_arguments(load.deployment, on_cpu=not _has_gpu())
    model = arguments.pop("model")
    flags = [text for name, value in arguments.items() for text in _flag(name, value)]
    own = ["--host", HOST, "--port", str(port), "--served-model-name", load.name]
    return [sys.executable, "-m", "tests.load.vllm_command", "serve", model, *own, *flags]


def _flag(name: str, value: object) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}"] if value else []  # what a worker turns off is off in vLLM by itself
    return [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _serve_environment(folder: str) -> dict[str, str]:
    environ = child_environment()
    prepare_vllm_environment(error_file=Path(folder) / "error.json", environ=environ)
    # The server says that it is ready on a level that the worker's engine is silent on.
    return {**environ, "VLLM_LOGGING_LEVEL": "INFO"}


def _has_gpu() -> bool:
    return os.path.exists("/dev/nvidiactl")  # noqa: PTH110  importing torch to ask it takes seconds


def measure(load: VllmLoad, system: str, port: int, key: str, *, concurrency: int, seed: int) -> VllmMeasurement:
    """Runs `vllm bench serve` once.

    Raises:
        BenchFailedError: It failed, or one of its requests.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        command = _bench_command(load, port, Path(folder), concurrency=concurrency, seed=seed)
        environ = child_environment(OPENAI_API_KEY=key, HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING")
        with Process(command, name="vllm bench serve", environ=environ, cwd=REPOSITORY_ROOT) as bench:
            status = bench.wait(timeout=BENCH_SECONDS)
            log = bench.log
        if status:
            raise BenchFailedError(f"vllm bench serve ended with {status}:\n{log}")
        result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text("utf-8"))
    if result["failed"]:
        raise BenchFailedError(f"{system} failed {result['failed']} requests:\n{log}")
    return VllmMeasurement(
        system,
        concurrency,
        result["completed"],
        result["total_output_tokens"],
        result["output_throughput"],
        result["p50_ttft_ms"],
        result["p95_ttft_ms"],
        result["p50_tpot_ms"],
        result["p99_itl_ms"],
    )


def _bench_command(load: VllmLoad, port: int, folder: Path, *, concurrency: int, seed: int) -> list[str]:
    options = {
        "backend": "openai-chat",
        "base-url": f"http://{HOST}:{port}",
        "endpoint": "/v1/chat/completions",
        "model": load.name,
        "tokenizer": load.model,
        "dataset-name": "random",
        "random-input-len": load.input_tokens,
        "random-output-len": load.output_tokens,
        "num-prompts": load.prompts_per_slot * concurrency,
        "max-concurrency": concurrency,
        "num-warmups": max(2, concurrency),
        "temperature": load.temperature,
        # A prompt seen before would be in the prefix cache.
        "seed": 1000 * seed + concurrency,
        "percentile-metrics": "ttft,tpot,itl",
        "metric-percentiles": "50,95,99",
        "result-dir": folder,
        "result-filename": "result.json",
    }
    pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    flags = ("--ignore-eos", "--save-result", "--disable-tqdm")
    return [sys.executable, "-m", "tests.load.vllm_command", "bench", "serve", *pairs, *flags]
