import pytest

from apps.api.frame_rate import FrameRate


def test_a_burst_is_free_and_a_flood_waits() -> None:
    rate = FrameRate(per_second=0.001, burst=5)
    assert [rate.take() for _ in range(5)] == [0.0] * 5
    waits = [rate.take() for _ in range(10)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(10_000, abs=200), "ten frames over the burst, less what the test itself takes"
