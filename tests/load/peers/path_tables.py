"""The token path beside its peers: lines and targets of cases 1, 2, 3 (32 streams) and 6 (fast streams)."""

from collections.abc import Callable, Sequence

from tests.load.peers.arms import DIRECT, HEADRACE, LITELLM
from tests.load.peers.rounds import Round, counting
from tests.load.peers.table import Line, Table, ratio
from tests.load.peers.token_path import PathFigures, PathLoad

Figure = Callable[[PathFigures], float]


def path_table(load: PathLoad, arms: Sequence[str], rounds: Sequence[Round]) -> Table:
    """Returns the table of cases 1 to 3; ratios are Headrace's to LiteLLM's, round by round."""
    rows = _Rows([DIRECT, *arms], counting(rounds))
    many = load.streams
    lines = [
        rows.times("plain, c=1, p50 ms", lambda one: one.plain.p50),
        rows.added("  added, p50 ms", lambda one: one.plain.p50, at_most=0.25),
        rows.added("  added, p99 ms", lambda one: one.plain.p99, at_most=0.25, less=lambda one: one.plain.p50),
        rows.times("TTFT, 1 stream, p50 ms", lambda one: one.ttft_alone.p50),
        rows.added("  added, p50 ms", lambda one: one.ttft_alone.p50, at_most=0.25),
        rows.added(f"added TTFT, {many} at once, p50 ms", lambda one: one.ttft_burst.p50, at_most=0.05),
        rows.added(f"added TTFT beside {many}, p50 ms", lambda one: one.ttft_beside.p50, at_most=0.05),
        rows.added(
            f"added gap, {many} whole answers, p99 ms",
            lambda one: one.gap_whole.p99,
            at_most=0.05,
            less=lambda one: one.gap_whole.p50,
        ),
        rows.added(
            f"added gap, {many} running, p99 ms", lambda one: one.gap.p99, at_most=0.05, less=lambda one: one.gap.p50
        ),
        rows.cost("gateway CPU, whole answers, us per token", lambda one: _gateway(one.whole_us_per_token), 0.05),
        rows.cost("gateway CPU, running, us per token", lambda one: _gateway(one.us_per_token), 0.05),
        rows.cost("system CPU, whole answers, us per token", lambda one: one.system_whole_us_per_token, 0.1),
        rows.cost("system CPU, running, us per token", lambda one: one.system_us_per_token, 0.1),
        rows.cost("gateway RSS before any load, MiB", lambda one: _gateway(one.idle_rss_mib), 0.5, first=True),
        rows.times("tokens per second", lambda one: one.tokens_per_second),
        rows.times("load core busy, share", lambda one: one.load_core_busy),
        rows.times("others busy, cores", lambda one: one.others_busy),
    ]
    return Table(f"Token path, {_load(load)}; {told(rounds)}", rows.arms, lines, _is_disturbed(rounds))


def fast_table(load: PathLoad, arms: Sequence[str], rounds: Sequence[Round]) -> Table:
    """Returns the table of case 6."""
    rows = _Rows([DIRECT, *arms], counting(rounds))
    added = [one.added(HEADRACE, lambda seen: seen.tpot_ms) for one in rows.rounds]
    delivered = [one.figure(HEADRACE, lambda seen: seen.tokens_per_second) for one in rows.rounds]
    tpot, speed = (rows.columns(lambda seen: seen.tpot_ms), rows.columns(lambda seen: seen.tokens_per_second))
    lines = [
        Line("tokens per second", speed, delivered, at_least=5000.0),
        Line("TPOT, median of streams, ms; judged: added", tpot, added, at_most=0.3),
        rows.cost("gateway CPU, us per token", lambda one: _gateway(one.us_per_token), None),
        rows.cost("system CPU, us per token", lambda one: one.system_us_per_token, None),
        rows.times("load core busy, share", lambda one: one.load_core_busy),
    ]
    return Table(f"Fast streams, {_load(load)}; {told(rounds)}", rows.arms, lines, _is_disturbed(rounds))


def told(rounds: Sequence[Round]) -> str:
    """Says how many rounds there were and whether they count."""
    disturbed = sum(bool(one.disturbed) for one in rounds)
    if _is_disturbed(rounds):
        return f"ALL {len(rounds)} ROUNDS WERE DISTURBED: figures of a machine that does other work"
    return f"median [quartiles] of {len(rounds) - disturbed} rounds, {disturbed} disturbed ones left out"


def _is_disturbed(rounds: Sequence[Round]) -> bool:
    return all(one.disturbed for one in rounds)


class _Rows:
    def __init__(self, arms: Sequence[str], rounds: Sequence[Round]) -> None:
        self.arms = list(arms)
        self.rounds = rounds

    def columns(self, of: Figure) -> list[list[float]]:
        return [[one.figure(arm, of) for one in self.rounds] for arm in self.arms]

    def times(self, label: str, of: Figure) -> Line:
        return Line(label, self.columns(of))

    def added(self, label: str, of: Figure, *, at_most: float, less: Figure | None = None) -> Line:
        """A figure less the direct arm's, which shows how far it strays from itself."""
        columns = [[one.added(arm, of, less) for one in self.rounds] for arm in self.arms]
        if less is None:
            columns[0] = []
        judged = [ratio(one.added(HEADRACE, of, less), one.added(LITELLM, of, less)) for one in self.rounds]
        return Line(label, columns, judged, at_most=at_most)

    def cost(self, label: str, of: Figure, at_most: float | None, *, first: bool = False) -> Line:
        rounds = self.rounds[:1] if first else self.rounds
        columns = [[], *[[one.figure(arm, of) for one in rounds] for arm in self.arms[1:]]]
        return Line(
            label, columns, [ratio(one.figure(HEADRACE, of), one.figure(LITELLM, of)) for one in rounds], at_most
        )


def _gateway(by_process: dict[str, float]) -> float:
    return by_process.get("gateway", float("nan"))


def _load(load: PathLoad) -> str:
    return f"{load.streams} streams x {load.tokens_per_second:g} tok/s, engine's TTFT {load.ttft_ms:g} ms"
