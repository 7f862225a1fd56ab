"""`make bench ARGS="--only peers"`: all cases beside the peers, tables, plots."""

import argparse
import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.load.peers import cached, client_check, growth, guarded, path_tables, plots, servers, slo, soak
from tests.load.peers.arms import HEADRACE, LITELLM, LITELLM_BARE, LITELLM_CACHE, NGINX, nginx_program
from tests.load.peers.cached import CachedLoad
from tests.load.peers.client_check import ClientLoad
from tests.load.peers.environments import LITELLM_ENVIRONMENT, Progress
from tests.load.peers.growth import GrowthLoad
from tests.load.peers.guarded import GuardedLoad
from tests.load.peers.rounds import run_rounds
from tests.load.peers.servers import ServersLoad
from tests.load.peers.slo import SloLoad
from tests.load.peers.soak import SoakLoad
from tests.load.peers.table import Table
from tests.load.peers.token_path import PathLoad
from tests.load.placement import Placement, on_core
from tests.load.report import machine

QUICK_CASES = ("path", "fast", "growth", "guard", "cache", "soak", "slo")
CASES = (*QUICK_CASES, "server", "client")


class PeersLoad(Struct, frozen=True):
    """How much of everything is measured."""

    rounds: int = 7
    other_rounds: int = 3
    """Of growth; of the guard twice as many."""
    path: PathLoad = PathLoad()
    fast: PathLoad = PathLoad(
        streams=16, tokens_per_second=330, seconds=4, plain_answers=0, bursts=0, short_streams=0, beside_seconds=0
    )
    growth: GrowthLoad = GrowthLoad()
    guarded: GuardedLoad = GuardedLoad()
    cached: CachedLoad = CachedLoad()
    soak: SoakLoad = SoakLoad()
    slo: SloLoad = SloLoad()
    servers: ServersLoad = ServersLoad()
    client: ClientLoad = ClientLoad()
    side_arms: bool = True
    """Whether LiteLLM without a key and nginx are measured too."""

    @classmethod
    def quick(cls) -> "PeersLoad":
        """Returns the form for a look in between."""
        return cls(
            rounds=2,
            other_rounds=1,
            path=PathLoad(seconds=4, plain_answers=50, short_streams=20, bursts=1),
            growth=GrowthLoad(seconds=5, idle_seconds=3),
            guarded=GuardedLoad(tokens=1500),
            cached=CachedLoad(answers=150, seconds=2),
            soak=SoakLoad(minutes=0.5),
            slo=SloLoad(seconds=20, short_seconds=5),
            side_arms=False,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what only this part of the bench knows."""
    group = parser.add_argument_group("beside peers (--only peers)")
    group.add_argument("--quick", action="store_true", help="few rounds, fewer arms, half a minute of soak, no vLLM")
    group.add_argument("--without-litellm", action="store_true", help="do not install and measure LiteLLM")
    group.add_argument("--case", choices=CASES, nargs="+", help="some cases only")
    group.add_argument("--soak-minutes", type=float, help="length of the soak (default: 3; 20 judges its growth)")


def run(
    options: argparse.Namespace, rounds: int | None, placement: Placement, content: dict[str, Any], progress: Progress
) -> list[Table]:
    """Runs the cases; puts all figures into `content`. `rounds` takes the place of the form's own number."""
    load = PeersLoad.quick() if options.quick else PeersLoad()
    load = msgspec.structs.replace(
        load,
        rounds=rounds or load.rounds,
        other_rounds=rounds or load.other_rounds,
        soak=msgspec.structs.replace(load.soak, minutes=options.soak_minutes or load.soak.minutes),
    )
    main = [HEADRACE] if options.without_litellm else [HEADRACE, LITELLM]
    side = [LITELLM_BARE] if not options.without_litellm else []
    side += [NGINX] if nginx_program() else []
    peers = content["peers"] = {"load": load, "litellm": LITELLM_ENVIRONMENT.version}
    cases = _Cases(load, main + (side if load.side_arms else []), placement, peers, options.output, progress)
    wanted = options.case or (QUICK_CASES if options.quick else CASES)
    with on_core(placement.load):
        peers["tables"] = tables = [table for name in CASES if name in wanted for table in getattr(cases, name)()]
    progress(f"tables for the documentation: {_write_markdown(tables, options.output)}")
    return tables


def _write_markdown(tables: Sequence[Table], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-peers.md"
    path.write_text("\n\n".join(table.markdown() for table in tables) + "\n", "utf-8")
    return path


class _Cases:
    """Each case by its name: measures, keeps the figures, draws."""

    def __init__(
        self,
        load: PeersLoad,
        arms: list[str],
        placement: Placement,
        figures: dict[str, Any],
        folder: Path,
        progress: Progress,
    ) -> None:
        self._load = load
        self._arms = arms
        self._placement = placement
        self._figures = figures
        self._folder = folder
        self._progress = progress

    def path(self) -> list[Table]:
        load, arms = self._load.path, self._arms
        seen = self._figures["path"] = run_rounds(
            load, arms, self._placement, rounds=self._load.rounds, progress=self._progress, title="token path"
        )
        plots.draw_path(arms, seen, self._file("path"))
        return [path_tables.path_table(load, arms, seen)]

    def fast(self) -> list[Table]:
        load, arms = self._load.fast, [HEADRACE]
        seen = self._figures["fast"] = run_rounds(
            load, arms, self._placement, rounds=self._load.rounds, progress=self._progress, title="fast streams"
        )
        plots.draw_speed(arms, seen, self._file("fast"))
        return [path_tables.fast_table(load, arms, seen)]

    def growth(self) -> list[Table]:
        rounds, load = self._load.other_rounds, self._load.growth
        seen = growth.run_rounds(load, self._placement, rounds=rounds, progress=self._progress)
        self._figures["growth"] = seen
        return [growth.growth_table(load, seen)]

    def guard(self) -> list[Table]:
        rounds, load = 2 * self._load.other_rounds, self._load.guarded
        seen = guarded.run_rounds(load, self._placement, rounds=rounds, progress=self._progress)
        self._figures["guard"] = seen
        return [guarded.guarded_table(load, seen)]

    def cache(self) -> list[Table]:
        arms = [HEADRACE, *([LITELLM_CACHE] if LITELLM in self._arms else [])]
        rounds, load = self._load.other_rounds, self._load.cached
        seen = cached.run_rounds(load, arms, self._placement, rounds=rounds, progress=self._progress)
        self._figures["cache"] = seen
        return [cached.cached_table(load, seen)]

    def soak(self) -> list[Table]:
        seen = self._figures["soak"] = soak.run_soak(self._load.soak, self._placement, progress=self._progress)
        plots.draw_soak(seen, self._file("soak"))
        return [soak.soak_table(self._load.soak, seen)]

    def server(self) -> list[Table]:
        rounds, load = self._load.other_rounds, self._load.servers
        seen = self._figures["server"] = servers.run_rounds(
            load, self._placement, rounds=rounds, progress=self._progress
        )
        return [servers.servers_table(load, seen)]

    def slo(self) -> list[Table]:
        seen = self._figures["slo"] = slo.run_slo(self._load.slo, self._placement, progress=self._progress)
        return slo.slo_tables(self._load.slo, seen, f"{os.cpu_count()} cores of {machine()['cpu']}")

    def client(self) -> list[Table]:
        rounds, load = self._load.other_rounds, self._load.client
        seen = client_check.run_check(load, self._placement, rounds=rounds, progress=self._progress)
        self._figures["client"] = seen
        return [client_check.check_table(load, seen)]

    def _file(self, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{name}.png"
        self._progress(f"plot: {path}")
        return path
