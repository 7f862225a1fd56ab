"""Rows that need no model: the simulated engine, the queue, the guard; and the installation of what others need."""

import msgspec

from tests.load import (
    admission_case,
    affinity_case,
    batch_case,
    crowd_case,
    failover_case,
    floor_case,
    guard_case,
    latency_case,
    simulated_case,
)
from tests.load.peers.environments import (
    LITELLM_ENVIRONMENT,
    LOCUST_ENVIRONMENT,
    SMG_ENVIRONMENT,
    UVICORN_ENVIRONMENT,
    ProgramMissingError,
)
from tests.load.placement import going_first, on_core
from tests.load.report import rendered, simulated_rows
from tests.load.rows import Measured, Run
from tests.load.simulated_case import TRANSPORTS, SimulatedLoad
from tests.load.supervision import RowLeftOutError


def install(run: Run) -> Measured:
    """Installs what other rows need, so that they measure and nothing else."""
    from tests.load.engine_rows import demo_model  # noqa: PLC0415  Django's settings, for this row's one line

    environments = [LOCUST_ENVIRONMENT, UVICORN_ENVIRONMENT]
    environments += [] if run.options.without_litellm else [LITELLM_ENVIRONMENT]
    environments += [] if run.options.without_smg else [SMG_ENVIRONMENT]
    failures = []
    for environment in environments:
        try:
            environment.ensure(progress=run.progress)
        except ProgramMissingError as error:
            failures.append(str(error))
    demo_model(run)
    if failures:
        raise RowLeftOutError("\n".join(failures))
    return [], {}


def sim(run: Run) -> Measured:
    """Measures the simulated engine at two paces."""
    options, rounds = run.options, run.rounds
    load = SimulatedLoad(streams=options.streams, tokens_per_second=options.rate, seconds=options.seconds or 9.0)
    busy = msgspec.structs.replace(load, tokens_per_second=options.busy_rate, seconds=load.seconds / 3)
    tables, figures = [], {}
    with going_first(wanted=options.first), on_core(run.placement.load):
        for name, one in {"simulated": load, "simulated_busy": busy}.items():
            measured = simulated_case.run_rounds(one, run.placement, rounds=rounds, progress=run.progress)
            figures[name] = {"load": one, "rounds": measured}
            title = (
                f"Simulated engine: {one.streams} streams x {one.tokens_per_second:g} tok/s for {one.seconds:g} s, "
                f"engine's TTFT {one.ttft_ms:g} ms\n{run.placement}; median [range] of {rounds} rounds"
            )
            names, prefix = tuple(TRANSPORTS), f"{one.tokens_per_second:g} tok/s, {' / '.join(TRANSPORTS)}: "
            tables.append(rendered(title, names, simulated_rows(measured, names), prefix=prefix))
    return tables, figures


def floor(run: Run) -> Measured:
    """Measures what this machine takes for a token that is carried and nothing else."""
    load, rounds = floor_case.FloorLoad(), run.rounds
    measured = floor_case.run_rounds(load, run.placement, rounds=rounds, progress=run.progress)
    title = (
        f"Floor: {load.streams} streams x {load.tokens_per_second:g} tok/s through a bare asyncio program\n"
        f"{run.placement}; median [range] of {rounds} rounds"
    )
    return [rendered(title, ("bare",), floor_case.table_rows(measured))], {"load": load, "rounds": measured}


def crowd(run: Run) -> Measured:
    """Sends crowds."""
    load, rounds = crowd_case.CrowdLoad(), run.rounds
    with going_first(wanted=run.options.first):
        measured = crowd_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = (
        f"Crowd: {load.clients} clients, {load.limit} of them served, {load.tokens_per_second:g} tok/s each, simulated "
        f"engine; median [range] of {rounds} rounds"
    )
    return [rendered(title, ("SSE",), crowd_case.table_rows(load, measured))], {"load": load, "rounds": measured}


def admission(run: Run) -> Measured:
    """Measures decisions, and neighbours."""
    load, rounds = admission_case.AdmissionLoad(), run.rounds
    with going_first(wanted=run.options.first), on_core(run.placement.load):
        measured = admission_case.run_rounds(load, run.placement, rounds=rounds, progress=run.progress)
    title = f"Admission and the fair queue, {load.tenants} tenants; median [range] of {rounds} rounds"
    return [rendered(title, ("",), admission_case.table_rows(load, measured))], {"load": load, "rounds": measured}


def batch(run: Run) -> Measured:
    """Measures the rules of the dynamic batch."""
    load, rounds = batch_case.BatchLoad(), run.rounds
    with on_core(run.placement.load):
        measured = batch_case.run_rounds(load, run.placement, rounds=rounds, progress=run.progress)
    title = (
        f"Dynamic batch: {load.clients} clients, goals {load.ttft_goal_seconds:g} s for the first token and "
        f"{load.tpot_goal_seconds * 1000:g} ms for each other, simulated engine; median [range] of {rounds} rounds"
    )
    table = rendered(title, list(measured[0].arms), batch_case.table_rows(measured))
    return [table], {"load": load, "rounds": measured}


def affinity(run: Run) -> Measured:
    """Replays a trace to several workers; also without affinity where the row is asked for by its name."""
    load, rounds = affinity_case.AffinityLoad(), run.rounds
    names = affinity_case.arms(with_smg=not run.options.without_smg, unpreferred="affinity" in (run.options.only or ()))
    with on_core(run.placement.load):
        measured = affinity_case.run_rounds(load, run.placement, rounds=rounds, names=names, progress=run.progress)
    title = (
        f"Prefix affinity: {load.workers} workers, {load.tenants} tenants with {load.prefixes} prefixes of "
        f"{load.prefix_tokens} tokens each, {load.requests} requests by Zipf's law, {load.per_second:g} a second\n"
        f"median [range] of {rounds} rounds"
    )
    table = rendered(title, list(measured[0].arms), affinity_case.table_rows(measured))
    return [table], {"load": load, "rounds": measured}


def guard(run: Run) -> Measured:
    """Measures rules in this process."""
    load, rounds = guard_case.GuardLoad(), run.rounds
    with on_core(run.placement.load):
        measured = guard_case.run_rounds(load, rounds=rounds, progress=run.progress)
    title = (
        f"Rules that judge character by character, {load.tokens} tokens of {measured[0].characters_per_token:.1f} "
        f"characters; median [range] of {rounds} rounds"
    )
    table = rendered(title, [case.name for case in load.cases], guard_case.table_rows(load, measured))
    return [table], {"load": load, "rounds": measured}


def latency_book(run: Run) -> Measured:
    """Compares the latency book with what clients see."""
    load, rounds = latency_case.LatencyLoad(), run.rounds
    with going_first(wanted=run.options.first), on_core(run.placement.load):
        measured = latency_case.run_rounds(load, run.placement, rounds=rounds, progress=run.progress)
    title = (
        f"Latency book: {load.streams} streams, {load.answers} answers of {load.tokens} tokens each; "
        f"median [range] of {rounds} rounds"
    )
    table = rendered(title, tuple(latency_case.TRANSPORTS), latency_case.table_rows(measured))
    return [table], {"load": load, "rounds": measured}


def failover(run: Run) -> Measured:
    """Measures streams whose client, worker or gateway goes away."""
    load, rounds = failover_case.FailoverLoad(), run.rounds
    measured = failover_case.run_rounds(load, run.placement, rounds=rounds, progress=run.progress)
    title = (
        f"Resume, takeover, drain: {load.streams} streams x {load.tokens_per_second:g} tok/s, leases of "
        f"{load.lease_seconds:g} s; median [range] of {rounds} rounds"
    )
    return [rendered(title, ("SSE",), failover_case.table_rows(measured))], {"load": load, "rounds": measured}
