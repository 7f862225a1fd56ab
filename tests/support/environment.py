"""The one place where test support reads the process environment."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class SupportEnvironment:
    """What a test run was told."""

    is_ci: bool
    """A missing part fails instead of being skipped."""
    database: Literal["postgres", "sqlite"]
    database_url: str | None
    """A PostgreSQL to use instead of starting one."""
    cache_dir: Path
    """Outlives a test run: models, copied server programs."""

    @classmethod
    def read(cls) -> Self:
        """Reads the process environment."""
        database = os.environ.get("HEADRACE_TEST_DATABASE", "postgres")
        if database not in {"postgres", "sqlite"}:
            msg = "HEADRACE_TEST_DATABASE: must be postgres or sqlite."
            raise ValueError(msg)
        return cls(
            is_ci=os.environ.get("CI", "").lower() in {"1", "true"},
            database=cast("Literal['postgres', 'sqlite']", database),
            database_url=os.environ.get("HEADRACE_TEST_DATABASE_URL") or None,
            cache_dir=REPOSITORY_ROOT / "var" / "cache",
        )


def child_environment(**changes: str) -> dict[str, str]:
    """Returns the environment for a child process: this one's, `platform/` and the root importable, plus `changes`."""
    roots = os.pathsep.join([str(REPOSITORY_ROOT / "platform"), str(REPOSITORY_ROOT)])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{roots}{os.pathsep}{inherited}" if inherited else roots
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **changes}
