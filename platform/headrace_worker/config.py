"""The one place where the worker reads (and, for its engine child, prepares) the process environment."""

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings

_REDIS_SCHEMES = ("redis", "rediss", "unix")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class InvalidEnvironmentError(Exception):
    """A variable has a value that cannot be used. The message starts with its name and never repeats the value."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """How long, and with how much of the KV cache (0..1), streams may be held before they are suspended."""

    hold_seconds: float = 20.0
    kv_share: float = 0.5
    kv_share_per_tenant: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingLimits:
    """When an engine is given up although it lives, and when no other one is started in its place (`healing`)."""

    error_share: float = 0.5
    """Of the last `error_window` streams; an engine that fails more of them is suspect. 1: none ever is."""
    error_window: int = 20
    quarantine_after: int = 6
    """Engines that ended within `quarantine_seconds`: then none is started until a person says so. 0: never."""
    quarantine_seconds: float = 900.0
    hang_seconds: float = 300.0
    """How long the event loop may stand still before the process ends; longer than vLLM takes to be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker process is told. Everything about the model comes from the deployment in the config snapshot."""

    deployment: str
    redis_url: str = field(repr=False)
    lease_seconds: float = 5.0
    renew_seconds: float = 1.0
    drain_seconds: float = 30.0
    """How long running streams may go on after SIGTERM."""
    hold_limits: HoldLimits = field(default_factory=HoldLimits)
    checkpoints: CheckpointSettings | None = None
    """None where no directory is named: nothing is saved."""
    adapter_dir: Path | None = None
    """Where the operator keeps LoRA adapters; None: there are none."""
    restart_seconds: float = 1.0
    """Back-off before a dead engine is started again; doubles up to `restart_max_seconds`."""
    restart_max_seconds: float = 60.0
    healing: HealingLimits = field(default_factory=HealingLimits)
    metrics_port: int = 0
    """Loopback port of the Prometheus metrics; 0 for none."""
    log_level: str = "INFO"
    log_json: bool = False

    @classmethod
    def read(cls, deployment: str, environ: Mapping[str, str] | None = None) -> Self:
        """Read `environ` (the process environment by default).

        Raises:
            InvalidEnvironmentError: a variable cannot be used.
        """
        source = os.environ if environ is None else environ
        return cls(
            deployment=deployment,
            redis_url=_redis_url(source),
            lease_seconds=_seconds(source, "HEADRACE_LEASE_SECONDS", 5.0),
            renew_seconds=_seconds(source, "HEADRACE_RENEW_SECONDS", 1.0),
            drain_seconds=_seconds(source, "HEADRACE_DRAIN_SECONDS", 30.0),
            hold_limits=HoldLimits(
                hold_seconds=_seconds(source, "HEADRACE_HOLD_SECONDS", 20.0),
                kv_share=_share(source, "HEADRACE_HELD_KV_SHARE", 0.5),
                kv_share_per_tenant=_share(source, "HEADRACE_HELD_KV_SHARE_PER_TENANT", 0.25),
            ),
            checkpoints=_checkpoints(source),
            adapter_dir=adapter_dir(source),
            restart_seconds=_seconds(source, "HEADRACE_ENGINE_RESTART_SECONDS", 1.0),
            healing=HealingLimits(
                error_share=_share(source, "HEADRACE_EJECT_ERROR_SHARE", 0.5),
                error_window=_count(source, "HEADRACE_EJECT_WINDOW", 20),
                quarantine_after=_count(source, "HEADRACE_QUARANTINE_AFTER", 6, low=0),
                quarantine_seconds=_seconds(source, "HEADRACE_QUARANTINE_SECONDS", 900.0),
                hang_seconds=_seconds(source, "HEADRACE_HANG_SECONDS", 300.0),
            ),
            metrics_port=_port(source, "HEADRACE_METRICS_PORT"),
            log_level=_log_level(source),
            log_json=_flag(source, "HEADRACE_LOG_JSON"),
        )


def adapter_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the operator's folder for LoRA adapters.

    Raises:
        InvalidEnvironmentError: it is not an absolute path.
    """
    text = (os.environ if environ is None else environ).get("HEADRACE_ADAPTER_DIR", "").strip()
    if text and not Path(text).is_absolute():
        raise InvalidEnvironmentError("HEADRACE_ADAPTER_DIR", "must be an absolute path.")
    return Path(text) if text else None


def _checkpoints(source: Mapping[str, str]) -> CheckpointSettings | None:
    directory = source.get("HEADRACE_CHECKPOINT_DIR", "").strip()
    if directory and not Path(directory).is_absolute():
        raise InvalidEnvironmentError("HEADRACE_CHECKPOINT_DIR", "must be an absolute path.")
    settings = CheckpointSettings(
        directory=directory,
        mib_per_tenant=_count(source, "HEADRACE_CHECKPOINT_MIB_PER_TENANT", 1024),
        every_tokens=_count(source, "HEADRACE_CHECKPOINT_TOKENS", 256),
        every_seconds=_seconds(source, "HEADRACE_CHECKPOINT_SECONDS", 10.0),
        min_tokens=_count(source, "HEADRACE_CHECKPOINT_MIN_TOKENS", 512),
        offload_gib=_count(source, "HEADRACE_KV_OFFLOAD_GIB", 0, low=0),
    )
    return settings if directory else None


def _count(source: Mapping[str, str], name: str, default: int, *, low: int = 1) -> int:
    text = source.get(name, "").strip() or str(default)
    if not text.isdecimal() or not low <= int(text) <= 1 << 30:
        raise InvalidEnvironmentError(name, f"must be a whole number from {low} to {1 << 30}.")
    return int(text)


def _redis_url(source: Mapping[str, str]) -> str:
    url = source.get("REDIS_URL", "").strip() or "redis://127.0.0.1:6379/0"
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in _REDIS_SCHEMES:
        raise InvalidEnvironmentError(
            "REDIS_URL", f"must be a URL that starts with one of {', '.join(_REDIS_SCHEMES)}."
        )
    return url


def _seconds(source: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(source.get(name, "").strip() or default)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 86_400:
        raise InvalidEnvironmentError(name, "must be a number of seconds from 0.01 to 86400.")
    return value


def _share(source: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(source.get(name, "").strip() or default)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise InvalidEnvironmentError(name, "must be a number from 0 to 1.")
    return value


def _port(source: Mapping[str, str], name: str) -> int:
    text = source.get(name, "").strip() or "0"
    if not text.isdecimal() or int(text) > 65_535:
        raise InvalidEnvironmentError(name, "must be a port, or 0 for none.")
    return int(text)


def _flag(source: Mapping[str, str], name: str) -> bool:
    text = source.get(name, "").strip().lower() or "0"
    if text not in {"0", "1", "false", "true", "no", "yes", "off", "on"}:
        raise InvalidEnvironmentError(name, "must be 1 or 0.")
    return text in {"1", "true", "yes", "on"}


def _log_level(source: Mapping[str, str]) -> str:
    level = source.get("HEADRACE_LOG_LEVEL", "").strip() or "INFO"
    if level not in _LOG_LEVELS:
        raise InvalidEnvironmentError("HEADRACE_LOG_LEVEL", f"must be one of {', '.join(_LOG_LEVELS)}.")
    return level


# ---- the engine child's environment


def child_environment() -> dict[str, str]:
    """Return the environment of a Python child that imports what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


_PRELOADS = ("libtcmalloc_minimal.so.4", "libiomp5.so")


def prepare_vllm_environment(*, error_file: Path, environ: MutableMapping[str, str] | None = None) -> None:
    """Set what vLLM reads from the environment, before it is imported; what an operator set stays.

    `error_file` is where the engine child writes why it could not start.
    """
    target = os.environ if environ is None else environ
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(_engine_threads()),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        target.setdefault(name, value)
    target[ENGINE_ERROR_FILE] = str(error_file)
    target[ENGINE_PARENT_PID] = str(os.getpid())
    if "LD_PRELOAD" not in target and (found := _preloads()):
        target["LD_PRELOAD"] = ":".join(found)


ENGINE_ERROR_FILE = "HEADRACE_ENGINE_ERROR_FILE"
"""Internal, from the worker to its engine child: a file for the reason of a failed start."""


ENGINE_PARENT_PID = "HEADRACE_ENGINE_PARENT_PID"
"""Internal, likewise: whose death is the child's. multiprocessing tells it only after the imports."""


def engine_parent_pid() -> int | None:
    """Return the worker that started this engine child."""
    pid = os.environ.get(ENGINE_PARENT_PID)
    return int(pid) if pid else None


def become_engine_parent(pid: int) -> None:
    """Name this process to the engine children that it forks, in the place of the worker that started it."""
    os.environ[ENGINE_PARENT_PID] = str(pid)


@contextmanager
def importable_for_children() -> Iterator[None]:
    """What is started inside can import what this process can."""
    before = os.environ.get("PYTHONPATH")
    os.environ.update(PYTHONPATH=child_environment()["PYTHONPATH"])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ.update(PYTHONPATH=before)


def engine_error_file() -> Path | None:
    """Return the file that this engine child reports a failed start to."""
    path = os.environ.get(ENGINE_ERROR_FILE)
    return Path(path) if path else None


def _engine_threads() -> int:
    # All cores: the worker itself needs a few per cent of one; leaving one idle halves a two-core machine's speed.
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _preloads() -> list[str]:
    folders = [Path(sys.prefix, "lib"), *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
    found = []
    for name in _PRELOADS:
        path = next((folder / name for folder in folders if (folder / name).exists()), None)
        if path is not None:
            found.append(str(path))
    return found
