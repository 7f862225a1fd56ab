"""Figures that a reader would be misled by if they were computed wrongly."""

import math
from pathlib import Path

import pytest

from tests.load import vllm_case
from tests.load.clients import SeenAnswer
from tests.load.measurements import median_of, percentile
from tests.load.report import Row, render_table
from tests.load.vllm_case import VllmFailure, VllmLoad, VllmMeasurement
from tests.load.vllm_systems import serve_command


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentile_is_a_value_that_was_seen(share: float, expected: float) -> None:
    assert percentile(range(1, 101), share) == expected


def test_median_leaves_out_rounds_without_a_figure() -> None:
    assert median_of([math.nan, 1.0, 3.0]) == 2.0
    assert math.isnan(median_of([math.nan]))


def test_window_of_an_answer_counts_its_tokens_and_whole_gaps() -> None:
    answer = SeenAnswer(0.0, arrivals=[1.0, 2.0, 4.0], tokens=[1, 2, 1], completion_tokens=4)
    assert answer.is_complete
    assert answer.ttft_seconds == 1.0
    assert answer.tokens_within(1.0, 4.0) == 3
    assert list(answer.gaps(1.5, 4.0)) == [2.0]


def test_missed_target_is_named() -> None:
    held, missed = Row("held", [[1.0, 2.0]], at_most=2.0), Row("missed", [[1.0], [3.0]], at_most=2.0)
    assert held.cells()[-1] == ""
    assert missed.cells()[-1] == "missed"
    assert Row("no figure", [[math.nan]], at_most=2.0).cells()[-1] == "missed"
    assert "1.50 [1.00-2.00]" in render_table("title", ["a"], [held])
    assert held.is_close
    assert not missed.is_close
    assert not Row("no figure", [[math.nan]], at_most=2.0).is_close
    assert not Row("another column's", [[1.0, 3.0], [5.0, 6.0]], at_most=2.0, judged=1).is_close


def test_ratio_is_taken_round_by_round() -> None:
    load = VllmLoad(Path("model"), concurrencies=(1,), modes=("greedy",))

    def measured(system: str, throughput: float) -> VllmMeasurement:
        return VllmMeasurement(system, "greedy", 1, 10, 100, throughput, 1.0, 1.0, 1.0, 1.0, {"engine": 500.0})

    rounds = [measured("vllm serve", 100.0), measured("Headrace", 50.0)]
    rounds += [measured("Headrace", 150.0), measured("vllm serve", 200.0)]
    assert vllm_case.table_rows(load, rounds)[0].columns == [[100.0, 200.0], [50.0, 150.0], [0.5, 0.75]]


def test_system_that_failed_has_a_line_and_only_ours_misses_the_target() -> None:
    load = VllmLoad(Path("model"), concurrencies=(1, 32), modes=("seeded",))

    def measured(system: str, concurrency: int) -> VllmMeasurement:
        return VllmMeasurement(system, "seeded", concurrency, 10, 100, 50.0, 1.0, 1.0, 1.0, 1.0, {"engine": 500.0})

    failures = [
        VllmFailure("vllm serve", "seeded", 32, "its server ended"),
        VllmFailure("Headrace", "seeded", 1, "odd"),
    ]
    rows = vllm_case.table_rows(load, [measured("vllm serve", 1), measured("Headrace", 32)], failures)
    labels = [row.label for row in rows]
    assert "seeded, c=32  vllm serve FAILED: its server ended" in labels
    assert "seeded, c=1  Headrace FAILED: odd" in labels
    judged = {row.label.split("  ")[0]: row.is_missed for row in rows if row.target}
    assert judged == {"seeded, c=1": True}


def test_bare_server_gets_the_arguments_of_the_workers_engine() -> None:
    load = VllmLoad(Path("some") / "Model", concurrencies=(1, 8))
    command = serve_command(load.deployment, name=load.name, port=1)
    assert command[command.index("serve") + 1] == str(Path("some") / "Model")
    assert command[command.index("--served-model-name") + 1] == "model"
    assert command[command.index("--max-num-seqs") + 1] == "8"
    assert "--enable-prefix-caching" in command
    assert "False" not in command
