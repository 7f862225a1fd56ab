"""The one place where the launcher reads the process environment, and where its children's is put together."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, cast

from headrace_launcher.errors import LaunchError

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

EngineKind = Literal["vllm", "simulated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEnvironment:
    """What `make up` was told. Secrets stay out of the `repr`."""

    host: str
    port: int
    state_dir: Path
    """Absolute."""
    checkpoint_dir: Path
    """Where workers keep KV checkpoints; in the state directory where nothing was given."""
    model: str | None
    """Hugging Face id or path; None for the demo model."""
    engine: EngineKind
    redis_url: str | None = field(repr=False)
    """None for the embedded one."""
    database_url: str | None = field(repr=False)
    """None for SQLite in the state directory."""
    secret_key: str | None = field(repr=False)
    """None for one that is made once and kept in the state directory."""
    ready_seconds: float
    """How long services and engine may take to become ready."""
    inherited: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Reads `environ` (the process environment by default).

        Raises:
            LaunchError: A variable cannot be used; the message starts with its name.
        """
        source = dict(os.environ if environ is None else environ)
        engine = _text(source, "HEADRACE_ENGINE") or "vllm"
        if engine not in {"vllm", "simulated"}:
            raise LaunchError("HEADRACE_ENGINE: must be vllm or simulated.")
        state_dir = Path(_text(source, "HEADRACE_STATE_DIR") or REPOSITORY_ROOT / "var").absolute()
        return cls(
            host=_text(source, "HEADRACE_HOST") or "127.0.0.1",
            port=int(_number(source, "HEADRACE_PORT", 8000, high=65_535, whole=True)),
            state_dir=state_dir,
            checkpoint_dir=Path(_text(source, "HEADRACE_CHECKPOINT_DIR") or state_dir / "checkpoints").absolute(),
            model=_text(source, "HEADRACE_MODEL"),
            engine=cast("EngineKind", engine),
            redis_url=_text(source, "REDIS_URL"),
            database_url=_text(source, "DATABASE_URL"),
            secret_key=_text(source, "HEADRACE_SECRET_KEY"),
            ready_seconds=_number(source, "HEADRACE_READY_SECONDS", 600, high=86_400),
            inherited=source,
        )

    def child(self, **changes: str) -> dict[str, str]:
        """Returns a child's environment: the inherited one, what this launcher decided, and `changes`."""
        roots = [str(REPOSITORY_ROOT / "platform"), str(REPOSITORY_ROOT), self.inherited.get("PYTHONPATH", "")]
        decided = {
            "PYTHONPATH": os.pathsep.join(filter(None, roots)),
            "PYTHONUNBUFFERED": "1",
            "HEADRACE_HOST": self.host,
            "HEADRACE_PORT": str(self.port),
            "HEADRACE_STATE_DIR": str(self.state_dir),
        }
        return {**self.inherited, **decided, **changes}


def _text(source: Mapping[str, str], name: str) -> str | None:
    return source.get(name, "").strip() or None


def _number(source: Mapping[str, str], name: str, default: float, *, high: float, whole: bool = False) -> float:
    try:
        value = float(_text(source, name) or default)
    except ValueError:
        value = 0.0
    if not 1 <= value <= high or (whole and value != int(value)):
        msg = f"{name}: must be a {'whole ' if whole else ''}number from 1 to {high:.0f}."
        raise LaunchError(msg)
    return value
