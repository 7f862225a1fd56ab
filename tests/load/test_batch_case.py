"""The short form of the batch bench: by objectives more answers keep the goals than with always the largest batch."""

from headrace_wire.batch import BatchControl
from tests.load.batch_case import BatchLoad, run_rounds
from tests.load.placement import Placement, on_core


def test_more_answers_keep_the_goals_by_objectives() -> None:
    load = BatchLoad(clients=32, answer_tokens=24, tpot_us_each=2000.0, settle_seconds=8.0, seconds=5.0)
    placement = Placement.of_this_machine()
    with on_core(placement.load):
        arms = (BatchControl.OFF, BatchControl.OBJECTIVES)
        (measured,) = run_rounds(load, placement, rounds=1, arms=arms, progress=print)
    off, objectives = (measured.arms[one.value] for one in arms)
    assert objectives.kept_per_second > 2 * off.kept_per_second
    assert objectives.answers_per_second > off.answers_per_second / 2
