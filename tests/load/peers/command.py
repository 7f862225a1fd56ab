"""`make bench ARGS="--only peers"`: all cases beside the peers, tables, plots."""

import argparse
from typing import Any

import msgspec
from msgspec import Struct

from tests.load.peers import path_tables
from tests.load.peers.arms import HEADRACE, LITELLM, LITELLM_BARE, NGINX, nginx_program
from tests.load.peers.litellm_environment import Progress, version
from tests.load.peers.rounds import run_rounds
from tests.load.peers.table import Table
from tests.load.peers.token_path import PathLoad
from tests.load.placement import Placement, on_core

CASES = ("path", "fast")


class PeersLoad(Struct, frozen=True):
    """How much of everything is measured."""

    rounds: int = 7
    path: PathLoad = PathLoad()
    fast: PathLoad = PathLoad(
        streams=16, tokens_per_second=330, seconds=5, plain_answers=0, bursts=0, short_streams=0, beside_seconds=0
    )
    side_arms: bool = True
    """Whether LiteLLM without a key and nginx are measured too."""

    @classmethod
    def quick(cls) -> "PeersLoad":
        """Returns the form for a look in between."""
        return cls(rounds=3, path=PathLoad(seconds=4, plain_answers=50, short_streams=20), side_arms=False)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what only this part of the bench knows."""
    group = parser.add_argument_group("beside peers (--only peers)")
    group.add_argument("--quick", action="store_true", help="3 rounds of the main arms, no soak")
    group.add_argument("--without-litellm", action="store_true", help="do not install and measure LiteLLM")
    group.add_argument("--case", choices=CASES, nargs="+", default=list(CASES), help="some cases only")


def run(
    options: argparse.Namespace, rounds: int | None, placement: Placement, content: dict[str, Any], progress: Progress
) -> list[Table]:
    """Runs the cases; puts all figures into `content`. `rounds` takes the place of the form's own number."""
    load = PeersLoad.quick() if options.quick else PeersLoad()
    load = msgspec.structs.replace(load, rounds=rounds or load.rounds)
    main = [HEADRACE] if options.without_litellm else [HEADRACE, LITELLM]
    side = [LITELLM_BARE] if not options.without_litellm else []
    side += [NGINX] if nginx_program() else []
    names = main + (side if load.side_arms else [])
    peers = content["peers"] = {"load": load, "arms": names, "litellm": version()}
    tables = []
    with on_core(placement.load):
        if "path" in options.case:
            seen = run_rounds(load.path, names, placement, rounds=load.rounds, progress=progress, title="token path")
            peers["path"] = seen
            tables.append(path_tables.path_table(load.path, names, seen))
        if "fast" in options.case:
            fast = [name for name in names if name != LITELLM_BARE]
            seen = run_rounds(load.fast, fast, placement, rounds=load.rounds, progress=progress, title="fast streams")
            peers["fast"] = seen
            tables.append(path_tables.fast_table(load.fast, fast, seen))
    peers["tables"] = tables
    return tables
