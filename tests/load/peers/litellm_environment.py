"""LiteLLM in an environment of its own: pinned, hashed, made by the bench when it is first needed."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.environment import REPOSITORY_ROOT

REQUIREMENTS = Path(__file__).with_name("litellm.txt")
FOLDER = REPOSITORY_ROOT / "var" / "peers" / "litellm"
PROGRAM = FOLDER / "bin" / "litellm"
_STAMP = FOLDER / "installed"

Progress = Callable[[str], None]


class PeerMissingError(Exception):
    """A peer cannot be installed or does not run. The message says what to do about it."""


def version() -> str:
    """Returns the version that the bench measures."""
    lines = REQUIREMENTS.read_text("utf-8").splitlines()
    return next(line.split("==")[1].rstrip(" \\") for line in lines if line.startswith("litellm=="))


def is_installed() -> bool:
    """Whether it is there, and as the requirements say."""
    return _STAMP.is_file() and _STAMP.read_text("utf-8") == _digest()


def ensure_litellm(*, progress: Progress) -> Path:
    """Installs LiteLLM's proxy where it is not there yet; returns its program.

    Raises:
        PeerMissingError: It cannot be installed.
    """
    if is_installed():
        return PROGRAM
    began, total = time.monotonic(), REQUIREMENTS.read_text("utf-8").count("==")
    progress(f"installing LiteLLM {version()} and what it needs ({total} packages, 760 MB) into {FOLDER}")
    _call([sys.executable, "-m", "venv", "--clear", str(FOLDER)], lambda _line: None)
    fetched = 0

    def show(line: str) -> None:
        nonlocal fetched
        if line.startswith("Collecting "):
            fetched += 1
            if not fetched % 20:
                progress(f"LiteLLM: {fetched} of {total} packages")
        elif line.startswith("Installing collected"):
            progress("LiteLLM: unpacking")

    options = ("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-deps", "--require-hashes")
    _call([str(FOLDER / "bin" / "python"), "-m", "pip", "install", *options, "-r", str(REQUIREMENTS)], show)
    _STAMP.write_text(_digest(), "utf-8")
    progress(f"LiteLLM installed in {time.monotonic() - began:.0f} s")
    return PROGRAM


def _call(command: list[str], show: Callable[[str], None]) -> None:
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            show(line)
    if process.returncode:
        raise PeerMissingError(
            f"LiteLLM could not be installed ({command[0]} ended with {process.returncode}). Its packages come from "
            "where pip is configured to look; --without-litellm measures the other arms.\n" + "".join(lines[-20:])
        )


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode() + str(FOLDER).encode()).hexdigest()
