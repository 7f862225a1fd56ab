from apps.api.frame_rate import FrameRate


def test_a_burst_is_free_and_a_flood_waits() -> None:
    rate = FrameRate(per_second=10, burst=5)
    assert [rate.take() for _ in range(5)] == [0.0] * 5
    waits = [rate.take() for _ in range(10)]
    assert waits == sorted(waits)
    assert 0.9 < waits[-1] <= 1.0, "ten frames over the burst are a second at ten a second"
