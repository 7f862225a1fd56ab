"""A worker that only exists by what it says of itself: enough for the control plane to measure and to ask."""

from redis import Redis

from apps.tenants.live_state import call_function
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.messages import ControlMessage
from headrace_worker import simulated_tokenizer as built_in
from headrace_worker.registration import model_assets

LEASE_MS = 60_000


def register_worker(
    redis: Redis,
    deployment: str,
    *,
    incarnation: str = "worker-1",
    cache_tokens: int = 8192,
    max_model_len: int = 4096,
    state: WorkerState = WorkerState.READY,
) -> str:
    """Take a lease, register a model that renders as the simulated engine's, and say who it is."""
    keys = [redis_keys.incarnations_key(), redis_keys.control_key(incarnation)]
    call_function("enlist", keys, [incarnation, LEASE_MS])
    tokenizer = built_in.built_in_tokenizer()
    assets = model_assets(
        identity=["test"],
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=built_in.CHAT_TEMPLATE,
        special_tokens=built_in.SPECIAL_TOKENS,
        renderer=built_in.BuiltInRenderer(tokenizer),
        max_model_len=max_model_len,
    )
    redis.set(redis_keys.model_assets_key(assets.fingerprint), codec.encode(assets))
    info = WorkerInfo(
        incarnation,
        deployment,
        "simulated",
        state,
        "node-1",
        4711,
        1_700_000_000.0,
        fingerprint=assets.fingerprint,
        max_model_len=max_model_len,
        cache_tokens=cache_tokens,
    )
    redis.hset(redis_keys.workers_key(), incarnation, codec.encode(info))
    return incarnation


def told(redis: Redis, incarnation: str) -> list[ControlMessage]:
    """Return what the worker was told."""
    rows: Reply = redis.xrange(redis_keys.control_key(incarnation))
    return [codec.decode_control(fields[b"d"]) for _, fields in rows if fields[b"d"]]
