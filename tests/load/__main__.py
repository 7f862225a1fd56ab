"""`python -m tests.load`, which is `make bench`: runs the cases, prints tables, writes JSON to var/bench/."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace_launcher.demo_model import ensure_demo_model
from tests.load import (
    admission_case,
    affinity_case,
    checkpoint_case,
    crowd_case,
    draft_case,
    guard_case,
    prompt_cache_case,
    simulated_case,
    slow_reader_case,
    vllm_case,
)
from tests.load.admission_case import AdmissionLoad
from tests.load.affinity_case import AffinityLoad
from tests.load.checkpoint_case import CheckpointLoad
from tests.load.crowd_case import CrowdLoad
from tests.load.draft_case import DraftLoad
from tests.load.guard_case import GuardLoad
from tests.load.peers import command as peers
from tests.load.placement import Placement, going_first, on_core
from tests.load.prompt_cache_case import PromptCacheLoad
from tests.load.report import machine, render_table, simulated_rows, write_json
from tests.load.simulated_case import TRANSPORTS, SimulatedLoad
from tests.load.slow_reader_case import SlowReaderLoad
from tests.load.vllm_case import MODES, VllmLoad
from tests.load.vllm_systems import SYSTEMS
from tests.support.environment import REPOSITORY_ROOT, SupportEnvironment
from tests.support.tiny_model import tiny_model_in

_BEGAN = time.monotonic()


def main(arguments: Sequence[str]) -> int:
    """Runs the bench; returns the exit status."""
    options = _parser().parse_args(arguments)
    peer_rounds, options.rounds = options.rounds, options.rounds or 3
    placement = Placement.of_this_machine()
    content: dict[str, Any] = {"machine": machine()}
    tables = []
    if options.only in {None, "sim"}:
        load = SimulatedLoad(streams=options.streams, tokens_per_second=options.rate, seconds=options.seconds)
        busy = msgspec.structs.replace(load, tokens_per_second=options.busy_rate, seconds=options.seconds / 3)
        with going_first(wanted=options.first):
            for name, one in {"simulated": load, "simulated_busy": busy}.items():
                tables.append(_simulated(name, one, placement, options.rounds, content))
    if options.only in {None, "vllm"}:
        model = options.model or tiny_model_in(SupportEnvironment.read().cache_dir)
        vllm_load = VllmLoad(
            model,
            concurrencies=tuple(options.concurrency),
            modes=tuple(options.mode),
            prompts_per_slot=options.prompts_per_slot,
        )
        tables.append(_vllm(vllm_load, options.rounds, content))
    tables += _prefill_tables(options, content)
    if options.only in {None, "slow"}:
        model = options.model or tiny_model_in(SupportEnvironment.read().cache_dir)
        with going_first(wanted=options.first):
            tables.append(_slow_readers(SlowReaderLoad(model), options.rounds, content))
    tables += _queue_tables(options, placement, content)
    if options.only in {None, "guard"}:
        tables.append(_guard(GuardLoad(), placement, options.rounds, content))
    if options.only in {None, "peers"}:
        tables += [table.render() for table in peers.run(options, peer_rounds, placement, content, _progress)]
    path = write_json(options.output, content)
    _say("\n\n".join(["", *tables, f"All figures: {path}"]))
    return 0


def _prefill_tables(options: argparse.Namespace, content: dict[str, Any]) -> list[str]:
    """Runs the cases that need a model whose prefill takes its time."""
    if options.only not in {None, "checkpoints", "prompt-cache", "draft"}:
        return []
    model = options.model or ensure_demo_model(REPOSITORY_ROOT / "var" / "models", progress=_progress)
    tables = []
    if options.only in {None, "checkpoints"}:
        tables.append(_checkpoints(CheckpointLoad(model), options.rounds, content))
    if options.only in {None, "prompt-cache"}:
        tables.append(_prompt_caches(PromptCacheLoad(model), options.rounds, content))
    if options.only in {None, "draft"}:
        tables.append(_drafts(DraftLoad(model), options.rounds, content))
    return tables


def _queue_tables(options: argparse.Namespace, placement: Placement, content: dict[str, Any]) -> list[str]:
    tables = []
    if options.only in {None, "crowd"}:
        with going_first(wanted=options.first):
            tables.append(_crowd(CrowdLoad(), options.rounds, content))
    if options.only in {None, "admission"}:
        with going_first(wanted=options.first):
            tables.append(_admission(AdmissionLoad(), placement, options.rounds, content))
    if options.only in {None, "affinity"}:
        tables.append(_affinity(AffinityLoad(), placement, options, content))
    return tables


def _simulated(name: str, load: SimulatedLoad, placement: Placement, rounds: int, content: dict[str, Any]) -> str:
    with on_core(placement.load):
        measured = simulated_case.run_rounds(load, placement, rounds=rounds, progress=_progress)
    content[name] = {"load": load, "rounds": measured}
    title = (
        f"Simulated engine: {load.streams} streams x {load.tokens_per_second:g} tok/s for {load.seconds:g} s, "
        f"engine's TTFT {load.ttft_ms:g} ms\n{placement}; median [range] of {rounds} rounds"
    )
    return render_table(title, tuple(TRANSPORTS), simulated_rows(measured, tuple(TRANSPORTS)))


def _vllm(load: VllmLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = vllm_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["vllm"] = {"load": {**_public(load), "model": load.name}, "rounds": measured}
    title = (
        f"vllm bench serve: {load.name}, {load.input_tokens} tokens in, {load.output_tokens} out; "
        f"median [range] of {rounds} rounds"
    )
    return render_table(title, (*SYSTEMS, "ratio"), vllm_case.table_rows(load, measured))


def _checkpoints(load: CheckpointLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = checkpoint_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["checkpoints"] = {"load": {**_public(load), "model": load.model.name}, "rounds": measured}
    title = f"KV checkpoints: {load.context_tokens} tokens of context; median [range] of {rounds} rounds"
    return render_table(title, (load.model.name,), checkpoint_case.table_rows(measured))


def _prompt_caches(load: PromptCacheLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = prompt_cache_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["prompt_caches"] = {"load": {**_public(load), "model": load.model.name}, "rounds": measured}
    title = (
        f"A pinned prompt cache of {load.prefix_words} words, and {load.probes} probes of another tenant; "
        f"median [range] of {rounds} rounds"
    )
    return render_table(title, (load.model.name,), prompt_cache_case.table_rows(measured))


def _drafts(load: DraftLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = draft_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["drafts"] = {"load": {**_public(load), "model": load.deployment.name}, "rounds": measured}
    title = f"Drafts: typed prompts of ~{load.prompt_tokens} tokens; median [range] of {rounds} rounds"
    return render_table(title, (load.deployment.name,), draft_case.table_rows(measured))


def _slow_readers(load: SlowReaderLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = slow_reader_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["slow_readers"] = {"load": {**_public(load), "model": load.name}, "rounds": measured}
    title = f"Slow readers: {load.stalled} clients that read nothing; median [range] of {rounds} rounds"
    return render_table(title, (load.name,), slow_reader_case.table_rows(load, measured))


def _crowd(load: CrowdLoad, rounds: int, content: dict[str, Any]) -> str:
    measured = crowd_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["crowd"] = {"load": load, "rounds": measured}
    title = (
        f"Crowd: {load.clients} clients, {load.limit} of them served, {load.tokens_per_second:g} tok/s each, simulated "
        f"engine; median [range] of {rounds} rounds"
    )
    return render_table(title, ("SSE",), crowd_case.table_rows(load, measured))


def _admission(load: AdmissionLoad, placement: Placement, rounds: int, content: dict[str, Any]) -> str:
    with on_core(placement.load):
        measured = admission_case.run_rounds(load, placement, rounds=rounds, progress=_progress)
    content["admission"] = {"load": load, "rounds": measured}
    title = f"Admission and the fair queue, {load.tenants} tenants; median [range] of {rounds} rounds"
    return render_table(title, ("",), admission_case.table_rows(load, measured))


def _affinity(load: AffinityLoad, placement: Placement, options: argparse.Namespace, content: dict[str, Any]) -> str:
    with on_core(placement.load):
        measured = affinity_case.run_rounds(
            load, placement, rounds=options.rounds, with_smg=not options.without_smg, progress=_progress
        )
    content["affinity"] = {"load": load, "rounds": measured}
    title = (
        f"Prefix affinity: {load.workers} workers, {load.tenants} tenants with {load.prefixes} prefixes of "
        f"{load.prefix_tokens} tokens each, {load.requests} requests by Zipf's law, {load.per_second:g} a second\n"
        f"median [range] of {options.rounds} rounds"
    )
    return render_table(title, list(measured[0].arms), affinity_case.table_rows(measured))


def _guard(load: GuardLoad, placement: Placement, rounds: int, content: dict[str, Any]) -> str:
    with on_core(placement.load):
        measured = guard_case.run_rounds(load, rounds=rounds, progress=_progress)
    content["guard"] = {"load": load, "rounds": measured}
    title = (
        f"Rules that judge character by character, {load.tokens} tokens of {measured[0].characters_per_token:.1f} "
        f"characters; median [range] of {rounds} rounds"
    )
    return render_table(title, [case.name for case in load.cases], guard_case.table_rows(load, measured))


def _public(load: VllmLoad | CheckpointLoad | PromptCacheLoad | DraftLoad | SlowReaderLoad) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__struct_fields__}


def _progress(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description="Measure Headrace on this machine.")
    parser.add_argument(
        "--only",
        choices=(
            "sim",
            "vllm",
            "checkpoints",
            "prompt-cache",
            "draft",
            "slow",
            "crowd",
            "admission",
            "affinity",
            "guard",
            "peers",
        ),
        help="one case instead of all",
    )
    parser.add_argument("--rounds", type=int, help="how often each case is measured (default: 3; beside peers, 7)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a simulated round's steady part")
    parser.add_argument("--streams", type=int, default=32, help="simulated streams at a time (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=50.0, help="tokens per second of each (default: %(default)s)")
    parser.add_argument(
        "--busy-rate", type=float, default=300.0, help="of a second, shorter run (default: %(default)s)"
    )
    parser.add_argument("--without-smg", action="store_true", help="affinity without a router beside it")
    parser.add_argument("--model", type=Path, help="a model's folder for vLLM (default: the tests' tiny one)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="of vLLM's bench")
    parser.add_argument("--mode", nargs="+", choices=tuple(MODES), default=list(MODES), help="of vLLM's bench")
    parser.add_argument("--prompts-per-slot", type=int, default=10, help="of vLLM's bench (default: %(default)s)")
    parser.add_argument(
        "--first", action="store_true", help="simulated engine, slow readers, crowd: run before all others (root)"
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY_ROOT / "var" / "bench", help="folder of the JSON")
    peers.add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
