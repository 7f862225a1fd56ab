"""Daphne, Twisted and autobahn still have what this package borrows from their insides."""

from headrace.server.borrowed_names import missing_names


def test_every_borrowed_name_is_still_there() -> None:
    missing = missing_names()
    assert not missing, (
        f"An upgrade of Daphne, Twisted or autobahn has removed {missing}. "
        "Find each use in platform/headrace/server, then correct borrowed_names.py."
    )
