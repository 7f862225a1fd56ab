"""How tests are dealt out: files stay whole, and those of one engine together."""

from itertools import groupby

import pytest

from tests.support.dealing import shared_engine
from tests.support.environment import REPOSITORY_ROOT


def test_files_stay_whole(request: pytest.FixtureRequest) -> None:
    files = [file for file, _ in groupby(request.session.items, key=lambda item: item.path)]
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("worker/test_vllm_engine.py", "engine_worker"),
        ("worker/test_engine_options.py", "engine_worker"),
        ("e2e/test_api_engine.py", "engine_stack"),
        ("e2e/test_backpressure.py", "engine_stack"),
        ("worker/test_engine_contract.py", None),
        ("e2e/test_quotas.py", None),
    ],
)
def test_engine_of_a_file_is_known_by_what_it_names(file: str, engine: str | None) -> None:
    """Also where a fixture stands on it, or a test gets it by name."""
    assert shared_engine(REPOSITORY_ROOT / "tests" / file) == engine
