"""A database that is away, for tests with `transactional_db`: this thread's connections are refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def database_down() -> Iterator[None]:
    """Nobody listens where the database was."""
    connection.close()
    kept = dict(connection.settings_dict)
    is_file = connection.vendor == "sqlite"
    connection.settings_dict.update({"NAME": "/nowhere/at/all"} if is_file else {"PORT": "1", "HOST": "127.0.0.1"})
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(kept)
