"""Rows in which a real engine runs: the tests' tiny model, or SmolLM2."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace_launcher.demo_model import ensure_demo_model
from tests.load import checkpoint_case, draft_case, idle_case, prompt_cache_case, slow_reader_case, vllm_case
from tests.load.checkpoint_case import CheckpointLoad
from tests.load.draft_case import DraftLoad
from tests.load.idle_case import IdleLoad
from tests.load.placement import going_first
from tests.load.prompt_cache_case import PromptCacheLoad
from tests.load.report import rendered
from tests.load.rows import Measured, Run
from tests.load.slow_reader_case import SlowReaderLoad
from tests.load.vllm_case import VllmLoad
from tests.load.vllm_systems import SYSTEMS
from tests.support.environment import REPOSITORY_ROOT, SupportEnvironment
from tests.support.tiny_model import tiny_model_in


def demo_model(run: Run) -> Path:
    """Returns SmolLM2's folder, after fetching it where it is not there."""
    return run.options.model or ensure_demo_model(REPOSITORY_ROOT / "var" / "models", progress=run.progress)


def _tiny_model(run: Run) -> Path:
    return run.options.model or tiny_model_in(SupportEnvironment.read().cache_dir)


def vllm(run: Run) -> Measured:
    """Compares with `vllm serve`, on a model whose steps are so short that all else shows."""
    options = run.options
    load = VllmLoad(_tiny_model(run))
    return _vllm(
        run,
        VllmLoad(
            load.model,
            concurrencies=tuple(options.concurrency or load.concurrencies),
            modes=tuple(options.mode or load.modes),
            prompts_per_slot=options.prompts_per_slot or load.prompts_per_slot,
        ),
    )


def vllm_smol(run: Run) -> Measured:
    """The same on a model whose steps take their time: few prompts, or a round takes twenty minutes."""
    options = run.options
    load = VllmLoad.few_prompts(demo_model(run))
    return _vllm(
        run,
        VllmLoad(
            load.model,
            concurrencies=tuple(options.concurrency or load.concurrencies),
            modes=tuple(options.mode or load.modes),
            prompts_per_slot=options.prompts_per_slot or load.prompts_per_slot,
            least_prompts=load.least_prompts,
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            most_warm_ups=load.most_warm_ups,
        ),
    )


def _vllm(run: Run, load: VllmLoad) -> Measured:
    rounds = run.rounds
    measured, failures = vllm_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = (
        f"vllm bench serve: {load.name}, {load.input_tokens} tokens in, {load.output_tokens} out; "
        f"median [range] of {rounds} rounds"
    )
    table = rendered(title, (*SYSTEMS, "ratio"), vllm_case.table_rows(load, measured, failures))
    return [table], {"load": {**_public(load), "model": load.name}, "rounds": measured, "failures": failures}


def checkpoints(run: Run) -> Measured:
    """Resumes streams with their checkpoints and without."""
    load, rounds = CheckpointLoad(demo_model(run)), run.rounds
    measured = checkpoint_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = f"KV checkpoints: {load.context_tokens} tokens of context; median [range] of {rounds} rounds"
    table = rendered(title, (load.model.name,), checkpoint_case.table_rows(measured))
    return [table], {"load": {**_public(load), "model": load.model.name}, "rounds": measured}


def prompt_cache(run: Run) -> Measured:
    """Asks with a pinned prefix and without, and as another tenant."""
    load, rounds = PromptCacheLoad(demo_model(run)), run.rounds
    measured = prompt_cache_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = (
        f"A pinned prompt cache of {load.prefix_words} words, and {load.probes} probes of another tenant; "
        f"median [range] of {rounds} rounds"
    )
    table = rendered(title, (load.model.name,), prompt_cache_case.table_rows(measured))
    return [table], {"load": {**_public(load), "model": load.model.name}, "rounds": measured}


def draft(run: Run) -> Measured:
    """Types prompts."""
    load, rounds = DraftLoad(demo_model(run)), run.rounds
    measured = draft_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = f"Drafts: typed prompts of ~{load.prompt_tokens} tokens; median [range] of {rounds} rounds"
    table = rendered(title, (load.deployment.name,), draft_case.table_rows(measured))
    return [table], {"load": {**_public(load), "model": load.deployment.name}, "rounds": measured}


def idle(run: Run) -> Measured:
    """Asks after a time without requests."""
    load, rounds = IdleLoad(demo_model(run), run.options.idle_seconds), run.rounds
    measured = idle_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = f"Idle for {load.idle_seconds:g} s, then a request; median [range] of {rounds} rounds"
    table = rendered(title, (load.deployment.name,), idle_case.table_rows(measured))
    return [table], {"load": {**_public(load), "model": load.deployment.name}, "rounds": measured}


def slow(run: Run) -> Measured:
    """Has clients read nothing."""
    load, rounds = SlowReaderLoad(_tiny_model(run)), run.rounds
    with going_first(wanted=run.options.first):
        measured = slow_reader_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = f"Slow readers: {load.stalled} clients that read nothing; median [range] of {rounds} rounds"
    table = rendered(title, (load.name,), slow_reader_case.table_rows(load, measured))
    return [table], {"load": {**_public(load), "model": load.name}, "rounds": measured}


def _public(load: Struct) -> dict[str, Any]:
    """Returns what is said of a load: not where its model lies."""
    return {name: getattr(load, name) for name in load.__struct_fields__}
