"""An SQLite file with all tables and nothing in them, made once per clone: to migrate takes 5 to 10 s."""

import fcntl
import hashlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from tests.support.environment import REPOSITORY_ROOT, SupportEnvironment
from tests.support.processes import run_to_end

_SOURCES = ("apps/*/migrations/*.py", "apps/*/*/migrations/*.py", "deploy/requirements/*.txt")


def copy_migrated(target: Path, environ: Mapping[str, str]) -> None:
    """Puts a copy there. Whoever uses it migrates all the same, which does what is not part of migrations."""
    cache_dir = SupportEnvironment.read().cache_dir
    cache_dir.mkdir(parents=True, exist_ok=True)
    kept = cache_dir / f"migrated-{_digest()}.sqlite3"
    with (cache_dir / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for older in cache_dir.glob("migrated-*.sqlite3"):
                older.unlink()
            with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
                _migrate(Path(scratch) / kept.name, environ)
                (Path(scratch) / kept.name).rename(kept)
        shutil.copyfile(kept, target)


def _migrate(database: Path, environ: Mapping[str, str]) -> None:
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    run_to_end(command, {**environ, "DATABASE_URL": f"sqlite:///{database}"})
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # all of it is in the one file then


def _digest() -> str:
    """Names what the tables are made from."""
    found = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(REPOSITORY_ROOT.glob(pattern)):
            found.update(str(path.relative_to(REPOSITORY_ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:16]
