from pathlib import Path

import pytest

from headrace_worker.config import (
    HealingLimits,
    HoldLimits,
    InvalidEnvironmentError,
    WorkerConfig,
    prepare_vllm_environment,
)
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings


def test_defaults() -> None:
    config = WorkerConfig.read("m", {})
    assert config == WorkerConfig(deployment="m", redis_url="redis://127.0.0.1:6379/0")


def test_everything_set() -> None:
    config = WorkerConfig.read(
        "m",
        {
            "REDIS_URL": "unix:///run/redis.sock",
            "HEADRACE_LEASE_SECONDS": "0.5",
            "HEADRACE_RENEW_SECONDS": "0.1",
            "HEADRACE_DRAIN_SECONDS": "7",
            "HEADRACE_HOLD_SECONDS": "3",
            "HEADRACE_HELD_KV_SHARE": "0.75",
            "HEADRACE_HELD_KV_SHARE_PER_TENANT": "0",
            "HEADRACE_ADAPTER_DIR": "/srv/adapters",
            "HEADRACE_CHECKPOINT_DIR": "/srv/kv",
            "HEADRACE_CHECKPOINT_MIB_PER_TENANT": "64",
            "HEADRACE_CHECKPOINT_TOKENS": "128",
            "HEADRACE_CHECKPOINT_SECONDS": "3.5",
            "HEADRACE_CHECKPOINT_MIN_TOKENS": "200",
            "HEADRACE_KV_OFFLOAD_GIB": "16",
            "HEADRACE_ENGINE_RESTART_SECONDS": "2",
            "HEADRACE_EJECT_ERROR_SHARE": "0.25",
            "HEADRACE_EJECT_WINDOW": "40",
            "HEADRACE_QUARANTINE_AFTER": "0",
            "HEADRACE_QUARANTINE_SECONDS": "60",
            "HEADRACE_HANG_SECONDS": "30",
            "HEADRACE_METRICS_PORT": "9100",
            "HEADRACE_LOG_LEVEL": "DEBUG",
        },
    )
    assert config == WorkerConfig(
        deployment="m",
        redis_url="unix:///run/redis.sock",
        lease_seconds=0.5,
        renew_seconds=0.1,
        drain_seconds=7,
        hold_limits=HoldLimits(hold_seconds=3, kv_share=0.75, kv_share_per_tenant=0),
        checkpoints=CheckpointSettings(
            directory="/srv/kv", mib_per_tenant=64, every_tokens=128, every_seconds=3.5, min_tokens=200, offload_gib=16
        ),
        adapter_dir=Path("/srv/adapters"),
        restart_seconds=2,
        healing=HealingLimits(
            error_share=0.25, error_window=40, quarantine_after=0, quarantine_seconds=60, hang_seconds=30
        ),
        metrics_port=9100,
        log_level="DEBUG",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "http://secret@example"),
        ("HEADRACE_LEASE_SECONDS", "soon"),
        ("HEADRACE_DRAIN_SECONDS", "-1"),
        ("HEADRACE_RENEW_SECONDS", "0.001"),
        ("HEADRACE_HELD_KV_SHARE", "1.5"),
        ("HEADRACE_HELD_KV_SHARE_PER_TENANT", "half"),
        ("HEADRACE_ADAPTER_DIR", "../adapters"),
        ("HEADRACE_CHECKPOINT_DIR", "var/kv"),
        ("HEADRACE_CHECKPOINT_MIB_PER_TENANT", "-5"),
        ("HEADRACE_CHECKPOINT_TOKENS", "many"),
        ("HEADRACE_EJECT_WINDOW", "-7"),
        ("HEADRACE_QUARANTINE_AFTER", "-1"),
        ("HEADRACE_METRICS_PORT", "99999"),
        ("HEADRACE_METRICS_PORT", "-1"),
        ("HEADRACE_LOG_LEVEL", "LOUD"),
    ],
)
def test_bad_values_name_the_variable_and_do_not_repeat_the_value(name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironmentError) as refusal:
        WorkerConfig.read("m", {name: value})
    assert str(refusal.value).startswith(f"{name}:")
    assert value not in str(refusal.value)


def test_a_secret_url_is_not_shown() -> None:
    assert "hunter2" not in repr(WorkerConfig.read("m", {"REDIS_URL": "redis://:hunter2@host/0"}))


def test_what_an_operator_set_for_the_engine_stays() -> None:
    environ = {"OMP_NUM_THREADS": "7", "LD_PRELOAD": ""}
    prepare_vllm_environment(error_file=Path("error.json"), environ=environ)
    assert environ["OMP_NUM_THREADS"] == "7"
    assert environ["LD_PRELOAD"] == ""
    assert environ["VLLM_NO_USAGE_STATS"] == "1"
