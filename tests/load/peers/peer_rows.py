"""Rows beside the peers: LiteLLM, nginx, uvicorn, `vllm bench serve`; and what is measured with the same client."""

import os

import msgspec
from msgspec import Struct

from tests.load.peers import cached, client_check, path_tables, servers
from tests.load.peers import growth as growing
from tests.load.peers import guarded as guarding
from tests.load.peers import slo as levels
from tests.load.peers import soak as soaking
from tests.load.peers.arms import HEADRACE, LITELLM, LITELLM_BARE, LITELLM_CACHE, NGINX, nginx_program
from tests.load.peers.cached import CachedLoad
from tests.load.peers.client_check import ClientLoad
from tests.load.peers.environments import LITELLM_ENVIRONMENT, ProgramMissingError
from tests.load.peers.growth import GrowthLoad
from tests.load.peers.guarded import GuardedLoad
from tests.load.peers.rounds import run_rounds
from tests.load.peers.servers import ServersLoad
from tests.load.peers.slo import SloLoad
from tests.load.peers.soak import SoakLoad
from tests.load.peers.table import Table
from tests.load.peers.token_path import PathLoad
from tests.load.placement import on_core
from tests.load.report import machine
from tests.load.rows import Measured, Run


class PeersLoad(Struct, frozen=True):
    """How much of everything is measured."""

    path: PathLoad = PathLoad()
    fast: PathLoad = PathLoad(
        streams=16, tokens_per_second=330, seconds=4, plain_answers=0, bursts=0, short_streams=0, beside_seconds=0
    )
    growth: GrowthLoad = GrowthLoad()
    guarded: GuardedLoad = GuardedLoad()
    cached: CachedLoad = CachedLoad()
    soak: SoakLoad = SoakLoad(minutes=20)
    slo: SloLoad = SloLoad()
    servers: ServersLoad = ServersLoad()
    client: ClientLoad = ClientLoad()
    side_rounds: int = 3
    """In so many of the path's rounds LiteLLM without a key and nginx are measured too: they are in no verdict."""

    @classmethod
    def quick(cls) -> "PeersLoad":
        """Returns the form for a look in between."""
        return cls(
            path=PathLoad(seconds=4, plain_answers=50, short_streams=20, bursts=1),
            growth=GrowthLoad(seconds=5, idle_seconds=3),
            guarded=GuardedLoad(tokens=1500),
            cached=CachedLoad(answers=150, seconds=2),
            soak=SoakLoad(minutes=0.5),
            slo=SloLoad(seconds=20, short_seconds=5),
            side_rounds=0,
        )


def _load(run: Run) -> PeersLoad:
    """Returns the form that is asked for."""
    load = PeersLoad.quick() if run.options.quick else PeersLoad()
    if run.options.seconds:
        path = msgspec.structs.replace(load.path, seconds=run.options.seconds)
        load = msgspec.structs.replace(load, path=path)
    minutes = run.options.soak_minutes or load.soak.minutes
    return msgspec.structs.replace(load, soak=msgspec.structs.replace(load.soak, minutes=minutes))


def _rounds(run: Run, *, quick: int) -> int:
    return quick if run.options.quick and not run.options.rounds else run.rounds


def _litellm(run: Run, name: str) -> list[str]:
    """Returns the arm's name where it can be measured."""
    if run.options.without_litellm:
        return []
    try:
        LITELLM_ENVIRONMENT.ensure(progress=run.progress)
    except ProgramMissingError as error:
        run.progress(f"without {name}: {error}")
        return []
    return [name]


def path(run: Run) -> Measured:
    """Measures what each arm adds to tokens on their way."""
    from tests.load.peers import plots  # noqa: PLC0415  matplotlib, which few rows need

    load = _load(run)
    arms = [HEADRACE, *_litellm(run, LITELLM)]
    side = [LITELLM_BARE] if LITELLM in arms else []
    side = [*side, *([NGINX] if nginx_program() else [])] if load.side_rounds else []
    with on_core(run.placement.load):
        seen = run_rounds(
            load.path,
            arms,
            run.placement,
            rounds=_rounds(run, quick=2),
            progress=run.progress,
            title="token path",
            side=side,
            side_rounds=load.side_rounds,
            has_time_for=run.has_time_for,
        )
    plots.draw_path([*arms, *side], seen, run.plot_path("path"))
    figures = {"load": load.path, "rounds": seen, "litellm": LITELLM_ENVIRONMENT.version}
    return [path_tables.path_table(load.path, [*arms, *side], seen).rendered()], figures


def fast(run: Run) -> Measured:
    """Measures few streams that are fast."""
    from tests.load.peers import plots  # noqa: PLC0415

    load, arms = _load(run), [HEADRACE]
    with on_core(run.placement.load):
        seen = run_rounds(
            load.fast,
            arms,
            run.placement,
            rounds=_rounds(run, quick=2),
            progress=run.progress,
            title="fast streams",
            has_time_for=run.has_time_for,
        )
    plots.draw_speed(arms, seen, run.plot_path("fast"))
    return [path_tables.fast_table(load.fast, arms, seen).rendered()], {"load": load.fast, "rounds": seen}


def growth(run: Run) -> Measured:
    """Measures few and many streams."""
    load = _load(run)
    with on_core(run.placement.load):
        seen = growing.run_rounds(load.growth, run.placement, rounds=_rounds(run, quick=1), progress=run.progress)
    return [growing.growth_table(load.growth, seen).rendered()], {"load": load.growth, "rounds": seen}


def guarded(run: Run) -> Measured:
    """Measures streams with a policy and without."""
    load = _load(run)
    with on_core(run.placement.load):
        seen = guarding.run_rounds(load.guarded, run.placement, rounds=2 * _rounds(run, quick=1), progress=run.progress)
    return [guarding.guarded_table(load.guarded, seen).rendered()], {"load": load.guarded, "rounds": seen}


def cache(run: Run) -> Measured:
    """Measures kept answers."""
    load, arms = _load(run), [HEADRACE, *_litellm(run, LITELLM_CACHE)]
    with on_core(run.placement.load):
        seen = cached.run_rounds(load.cached, arms, run.placement, rounds=_rounds(run, quick=1), progress=run.progress)
    return [cached.cached_table(load.cached, seen).rendered()], {"load": load.cached, "rounds": seen}


def soak(run: Run) -> Measured:
    """Soaks one stack."""
    from tests.load.peers import plots  # noqa: PLC0415

    load = _load(run)
    with on_core(run.placement.load):
        seen = soaking.run_soak(load.soak, run.placement, progress=run.progress)
    plots.draw_soak(seen, run.plot_path("soak"))
    return [soaking.soak_table(load.soak, seen).rendered()], {"load": load.soak, "seen": seen}


def server(run: Run) -> Measured:
    """Measures ASGI servers alone."""
    load = _load(run)
    with on_core(run.placement.load):
        seen = servers.run_rounds(load.servers, run.placement, rounds=_rounds(run, quick=1), progress=run.progress)
    return [servers.servers_table(load.servers, seen).rendered()], {"load": load.servers, "rounds": seen}


def slo(run: Run) -> Measured:
    """Runs locust's test, and asks for short answers."""
    load = _load(run)
    with on_core(run.placement.load):
        seen = levels.run_slo(load.slo, run.placement, progress=run.progress)
    tables: list[Table] = levels.slo_tables(load.slo, seen, f"{os.cpu_count()} cores of {machine()['cpu']}")
    return [table.rendered() for table in tables], {"load": load.slo, "seen": seen}


def client(run: Run) -> Measured:
    """Compares load clients."""
    load = _load(run)
    with on_core(run.placement.load):
        seen = client_check.run_check(load.client, run.placement, rounds=_rounds(run, quick=1), progress=run.progress)
    return [client_check.check_table(load.client, seen).rendered()], {"load": load.client, "rounds": seen}
