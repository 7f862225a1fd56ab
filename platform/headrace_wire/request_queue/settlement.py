"""The end of a stream on its record: the call that books what it used, exactly once, for one or for several at once."""

from headrace_wire import redis_keys
from headrace_wire.functions import Argument, Call
from headrace_wire.messages import FinishReason, StreamState, Usage

TOMBSTONE_SECONDS = 24 * 3600
"""How much longer than its log a stream's record lives, so that an expired stream is told from an unknown one."""


def settle_call(
    stream_id: str,
    *,
    epoch: int,
    incarnation: str,
    state: StreamState,
    log_ttl_seconds: int,
    finish_reason: FinishReason,
    usage: Usage,
) -> Call:
    """Return the call that `RequestQueue.settle` makes; answered by 1, or by 0 where it was not ours (any more)."""
    keys = [
        redis_keys.stream_key(stream_id),
        redis_keys.assigned_key(incarnation),
        redis_keys.usage_key(),
        redis_keys.soft_limits_key(),
        redis_keys.queue_prefix(),
        redis_keys.stream_prefix(),
        redis_keys.finished_answers_key(),
    ]
    keep = (log_ttl_seconds + TOMBSTONE_SECONDS) * 1000
    args: list[Argument] = [
        *(stream_id, epoch, state.value, keep, finish_reason.value),
        *(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
    ]
    return "settle", keys, args
