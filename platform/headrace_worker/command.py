"""The command line of the worker."""

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Sequence

import msgspec

from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from headrace_worker.checking import check, check_adapter_files
from headrace_worker.config import InvalidEnvironmentError, WorkerConfig
from headrace_worker.engine import Engine
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.engine_host import EngineFactory
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.process_guard import guard_spawned_children
from headrace_worker.simulated_engine import SimulatedEngine
from headrace_worker.watchdog import watch_loop
from headrace_worker.worker import Worker
from headrace_worker.worker_log import set_up_logging

GC_THRESHOLDS = (10_000, 5, 20)
"""As a gateway's: each token leaves one list, of what may have to be logged again, and no cycle."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.check:
        return check(sys.stdin.buffer)
    if options.check_adapter:
        return check_adapter_files(sys.stdin.buffer)
    try:
        config = WorkerConfig.read(options.deployment)
    except InvalidEnvironmentError as error:
        sys.stderr.write(f"headrace_worker: {error}\n")
        return 2
    set_up_logging(config.log_level, as_json=config.log_json)
    guard_spawned_children()

    def create(deployment: DeploymentConfig) -> Engine:
        engine = create_engine(_overridden(deployment, options.engine, options.model), config.checkpoints)
        keep_what_exists()
        return engine

    metrics = WorkerMetrics()
    try:
        metrics.serve(config.metrics_port)
    except OSError as error:
        sys.stderr.write(f"headrace_worker: HEADRACE_METRICS_PORT: cannot listen there: {error.strerror}\n")
        return 2
    return asyncio.run(_run(config, create, metrics))


def create_engine(deployment: DeploymentConfig, checkpoints: CheckpointSettings | None = None) -> Engine:
    """Return the engine that a deployment asks for, not started."""
    if deployment.engine is EngineKind.SIMULATED:
        return SimulatedEngine(deployment)
    from headrace_worker.vllm_engine.engine import VllmEngine  # noqa: PLC0415  ten seconds of imports, only where needed

    return VllmEngine(deployment, checkpoints=checkpoints)


def keep_what_exists() -> None:
    """Have the collector look no more at what there is now: modules, nearly all of it, and with vLLM many.

    A full collection of these takes 20 to 40 ms, in which no stream gets a token. What an engine that has ended left
    behind is collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _run(config: WorkerConfig, create: EngineFactory, metrics: WorkerMetrics) -> int:
    worker = Worker(config, create, metrics)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    watchdog = asyncio.create_task(watch_loop(config.healing.hang_seconds), name="watchdog")
    try:
        await worker.run()
    finally:
        await cancel_and_wait(watchdog)
    return worker.exit_status


def _overridden(deployment: DeploymentConfig, engine: str | None, model: str | None) -> DeploymentConfig:
    if engine is not None:
        deployment = msgspec.structs.replace(deployment, engine=EngineKind(engine))
    if model is not None:
        deployment = msgspec.structs.replace(deployment, model=model)
    return deployment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace_worker", description="Serve one deployment from this machine.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--deployment", help="public model name, as configured in the admin")
    task.add_argument(
        "--check", action="store_true", help="judge the deployment given as JSON on standard input, and load nothing"
    )
    task.add_argument(
        "--check-adapter", action="store_true", help="judge the LoRA adapter that standard input names as JSON"
    )
    parser.add_argument(
        "--engine", choices=[kind.value for kind in EngineKind], help="override the deployment's engine"
    )
    parser.add_argument("--model", help="override the deployment's model (path or Hugging Face id)")
    return parser
