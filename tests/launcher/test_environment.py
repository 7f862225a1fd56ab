"""What the launcher reads from its environment, and what it hands to its children."""

from pathlib import Path

import pytest

from headrace_launcher.environment import REPOSITORY_ROOT, LauncherEnvironment
from headrace_launcher.errors import LaunchError


def test_defaults_are_the_embedded_ones() -> None:
    environment = LauncherEnvironment.read({})
    assert (environment.host, environment.port, environment.engine) == ("127.0.0.1", 8000, "vllm")
    assert environment.state_dir == REPOSITORY_ROOT / "var"
    assert environment.checkpoint_dir == REPOSITORY_ROOT / "var" / "checkpoints"
    assert environment.redis_url is environment.database_url is environment.model is environment.secret_key is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_PORT", "http"),
        ("HEADRACE_PORT", "0"),
        ("HEADRACE_PORT", "80.5"),
        ("HEADRACE_PORT", "70000"),
        ("HEADRACE_PORT", "nan"),
        ("HEADRACE_ENGINE", "llama.cpp"),
        ("HEADRACE_READY_SECONDS", "-1"),
    ],
)
def test_bad_value_is_refused_with_the_name_of_its_variable(name: str, value: str) -> None:
    with pytest.raises(LaunchError, match=f"^{name}: must be"):
        LauncherEnvironment.read({name: value})


def test_secrets_are_not_in_the_repr() -> None:
    given = {"HEADRACE_SECRET_KEY": "hidden-1", "DATABASE_URL": "postgresql://u:hidden-2@h/d", "OTHER": "hidden-3"}
    assert "hidden" not in repr(LauncherEnvironment.read(given))


def test_children_inherit_and_are_told(tmp_path: Path) -> None:
    environment = LauncherEnvironment.read({"PATH": "/bin", "HEADRACE_STATE_DIR": str(tmp_path), "PYTHONPATH": "/mine"})
    child = environment.child(REDIS_URL="unix:///r")
    assert child["PATH"] == "/bin"
    assert child["REDIS_URL"] == "unix:///r"
    assert child["HEADRACE_STATE_DIR"] == str(tmp_path)
    assert child["PYTHONPATH"].split(":") == [str(REPOSITORY_ROOT / "platform"), str(REPOSITORY_ROOT), "/mine"]
