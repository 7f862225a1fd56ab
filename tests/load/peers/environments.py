"""Programs in environments of their own: pinned, hashed, made by the bench when they are first needed."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.environment import REPOSITORY_ROOT

Progress = Callable[[str], None]


class ProgramMissingError(Exception):
    """A program cannot be installed. The message says what to do about it."""


class Environment:
    """One program's environment under var/."""

    def __init__(self, name: str, *, without: str) -> None:
        self.name = name
        self.program = REPOSITORY_ROOT / "var" / "peers" / name / "bin" / name
        self._folder = self.program.parent.parent
        self._requirements = Path(__file__).with_name(f"{name}.txt")
        self._stamp = self._folder / "installed"
        self._without = without
        """How the bench is run where it cannot be installed."""

    @property
    def version(self) -> str:
        """The version that is pinned."""
        lines = self._requirements.read_text("utf-8").splitlines()
        return next(line.split("==")[1].rstrip(" \\") for line in lines if line.startswith(f"{self.name}=="))

    def ensure(self, *, progress: Progress) -> Path:
        """Installs what is not there yet; returns the program.

        Raises:
            ProgramMissingError: It cannot be installed.
        """
        if self._stamp.is_file() and self._stamp.read_text("utf-8") == self._digest():
            return self.program
        began = time.monotonic()
        total = sum(line[:1].isalnum() for line in self._requirements.read_text("utf-8").splitlines())
        progress(f"installing {self.name} {self.version}, {total} packages, into {self._folder}")
        self._call([sys.executable, "-m", "venv", "--clear", str(self._folder)], lambda _line: None)
        fetched = 0

        def show(line: str) -> None:
            nonlocal fetched
            fetched += line.startswith("Collecting ")
            if line.startswith("Collecting ") and not fetched % 20:
                progress(f"{self.name}: {fetched} of {total} packages")
            elif line.startswith("Installing collected"):
                progress(f"{self.name}: unpacking")

        options = ("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-deps", "--require-hashes")
        pip = (str(self._folder / "bin" / "python"), "-m", "pip", "install")
        self._call([*pip, *options, "-r", str(self._requirements)], show)
        self._stamp.write_text(self._digest(), "utf-8")
        progress(f"{self.name} installed in {time.monotonic() - began:.0f} s")
        return self.program

    def _call(self, command: list[str], show: Callable[[str], None]) -> None:
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                show(line)
        if process.returncode:
            raise ProgramMissingError(
                f"{self.name} could not be installed ({command[0]} ended with {process.returncode}). Its packages come "
                f"from where pip is configured to look; {self._without}.\n" + "".join(lines[-20:])
            )

    def _digest(self) -> str:
        content = self._requirements.read_bytes() + sys.version.encode() + str(self._folder).encode()
        return hashlib.sha256(content).hexdigest()


LITELLM_ENVIRONMENT = Environment("litellm", without="--without-litellm measures the other arms")
SMG_ENVIRONMENT = Environment("smg", without="--without-smg measures affinity without a router beside it")
LOCUST_ENVIRONMENT = Environment("locust", without="--only with other rows leaves `slo` out")
UVICORN_ENVIRONMENT = Environment("uvicorn", without="--only with other rows leaves `server` out")
