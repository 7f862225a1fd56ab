"""`python -m tests.load`, which is `make bench`: runs rows, prints tables, writes files to var/bench/."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.load.bench import Bench
from tests.load.comparison import UnreadableRunError
from tests.load.rows import PEER_ROWS, QUICK_ROWS, ROWS
from tests.support.environment import REPOSITORY_ROOT

_MODES = ("greedy", "sampled", "seeded")
_OTHER_NAMES = {"guard": "guarded"}
"""Of rows, behind `--case`."""


def main(arguments: Sequence[str]) -> int:
    """Runs the bench; returns the exit status: 0 when every row has its figures, whatever they are."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        bench = Bench(options, arguments, wanted_rows(options))
    except UnreadableRunError as error:
        parser.error(f"argument --against: {error}")
    return bench.run()


def wanted_rows(options: argparse.Namespace) -> list[str]:
    """Returns the names of the rows that are asked for."""
    if not options.only:
        return list(QUICK_ROWS) if options.quick else [row.name for row in ROWS if row.is_usual]
    wanted = set()
    for name in options.only:
        if name != "peers":
            wanted.add(name)
        elif options.case:
            wanted |= {_OTHER_NAMES.get(case, case) for case in options.case}
        else:
            wanted |= set(QUICK_ROWS if options.quick else PEER_ROWS)
    return [row.name for row in ROWS if row.name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description="Measure Headrace on this machine.")
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", choices=("peers", *[row.name for row in ROWS]), help="some instead of all"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="time for all: rows that come too late are left out, and said to be (default: 55 where no row is named)",
    )
    parser.add_argument("--rounds", type=int, help="how often each row is measured (default: each row's own number)")
    parser.add_argument("--seconds", type=float, help="length of the steady part of a round of `sim` and `path`")
    parser.add_argument("--output", type=Path, default=REPOSITORY_ROOT / "var" / "bench", help="folder of the files")
    parser.add_argument(
        "--against", type=Path, metavar="JSON", help="the file of an earlier run: says which verdicts are others now"
    )
    parser.add_argument("--quick", action="store_true", help="the short form of some of the peers' rows")
    parser.add_argument("--without-litellm", action="store_true", help="do not install and measure LiteLLM")
    parser.add_argument("--without-smg", action="store_true", help="affinity without a router beside it")
    parser.add_argument("--soak-minutes", type=float, help="length of the soak (default: 20, which judges its growth)")
    parser.add_argument(
        "--alone", action="store_true", help="no row beside the soak: four minutes longer, for machines of one core"
    )
    parser.add_argument(
        "--first", action="store_true", help="sim, slow, crowd, admission, latency-book: run before all others (root)"
    )
    engine = parser.add_argument_group("rows with an engine")
    engine.add_argument("--model", type=Path, help="a model's folder (default: the tests' tiny one, or SmolLM2)")
    engine.add_argument("--concurrency", type=int, nargs="+", help="of vllm's rows (default: 1 8 32)")
    engine.add_argument("--mode", nargs="+", choices=_MODES, help="of vllm's rows")
    engine.add_argument(
        "--idle-seconds", type=float, default=600.0, help="without requests, of row idle (default: %(default)g)"
    )
    engine.add_argument("--prompts-per-slot", type=int, help="of vllm's rows")
    simulated = parser.add_argument_group("row sim")
    simulated.add_argument("--streams", type=int, default=32, help="streams at a time (default: %(default)s)")
    simulated.add_argument("--rate", type=float, default=50.0, help="tokens per second of each (default: %(default)s)")
    simulated.add_argument(
        "--busy-rate", type=float, default=300.0, help="of a second, shorter run (default: %(default)s)"
    )
    beside = parser.add_argument_group("--only peers")
    beside.add_argument(
        "--case", choices=(*PEER_ROWS, *_OTHER_NAMES), nargs="+", metavar="ROW", help="some of their rows only"
    )
    rows = [f"  {row.name:13} {row.seconds:5.0f} s  case {row.case}: {row.text}" for row in ROWS]
    parser.epilog = "\n".join(["rows, and seconds on two quiet cores:", *rows, "  peers: those that use its client"])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
