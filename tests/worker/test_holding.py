"""Which streams out of credit are suspended, as far as that needs no engine. The rest is in test_credit."""

from headrace_wire.messages import GenerateRequest, SamplingParams
from headrace_wire.request_queue import Claimed
from headrace_worker.config import HoldLimits
from headrace_worker.engine import EngineStats, HeldRequest
from headrace_worker.generation import Generation
from headrace_worker.holding import KV_BUDGET, Holds


def generation(stream_id: str) -> Generation:
    request = GenerateRequest(stream_id, "t", "m", SamplingParams(max_tokens=60), "salt", window=1)
    claimed = Claimed(stream_id, 7, 0.0, 1, is_late=False, request=request, credit=1)
    return Generation(claimed, owner="w", emit=lambda _: None)


def test_nobody_follows_one_that_is_on_its_way_out() -> None:
    """To save what it has computed may take longer than until the engine's next count, which has it still."""
    streams = [generation(name) for name in ("first", "second", "third")]
    suspended: list[tuple[str, str]] = []
    holds = Holds(
        HoldLimits(kv_share=0.5, kv_share_per_tenant=1.0),
        show=lambda _: None,
        suspend=lambda one, reason: suspended.append((one.stream_id, reason)),
    )
    for one in streams:
        holds.add(one, 0.0)
    stats = EngineStats(held=[HeldRequest(one.request_id, 1.0, 0.2) for one in streams])
    holds.consider(stats)
    assert suspended == [("first", KV_BUDGET)]
    streams[0].is_leaving = True
    holds.consider(stats)
    assert suspended == [("first", KV_BUDGET)]
