"""The bare program carries what it is given, and its price is counted."""

from tests.load.floor_case import FloorLoad, run_rounds
from tests.load.placement import Placement


def test_every_stream_gets_its_tokens() -> None:
    load = FloorLoad(streams=4, tokens_per_second=20.0, seconds=1.0)
    measured = run_rounds(load, Placement(None, None), rounds=2, progress=lambda _: None)
    assert len(measured) == 2
    assert all(one.tokens % load.streams == 0 for one in measured)
    assert all(one.cpu_us_per_token > 0 for one in measured)
