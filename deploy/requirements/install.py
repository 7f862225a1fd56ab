#!/usr/bin/env python3
"""Brings .venv to the pinned requirements of this folder: `install.py gateway engine-cpu dev`.

Standard library only, run by the machine's own Python. Each part leaves a stamp with the digest of what it installed:
a second run does only what changed.
"""

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent
ROOT = REQUIREMENTS.parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class InstallError(Exception):
    """The environment cannot be made. The message says what to do about it."""


@dataclass(frozen=True)
class Part:
    """One thing to install: the files that its stamp depends on, and how."""

    inputs: tuple[Path, ...]
    install: Callable[[str], None]


def locked(name: str) -> Part:
    """A file whose every line is pinned and hashed, so that no resolver is needed."""
    file = REQUIREMENTS / f"{name}.txt"
    return Part(
        (file,), lambda label: _pip(label, "--no-deps", "--require-hashes", "-r", str(file), total=_count(file))
    )


def _install_torch(label: str) -> None:
    """The CPU build from where pip looks anyway (wheels at hand), else from PyTorch's own index."""
    arguments = ["--no-deps", "-r", str(TORCH_FILE)]
    try:
        _pip(label, *arguments, total=1)
    except InstallError:
        sys.stdout.write(f"  {label}: no CPU build where pip looks; trying PyTorch's own index\n")
        _pip(label, "--index-url", PYTORCH_CPU_INDEX, *arguments, total=1)


def _install_project(label: str) -> None:
    _pip(label, "--no-deps", "--no-build-isolation", "--no-index", "-e", str(ROOT), total=1)


TORCH_FILE = REQUIREMENTS / "torch-cpu.txt"
PARTS = {
    "gateway": locked("gateway"),
    "guard-models": locked("guard-models"),
    "torch-cpu": Part((TORCH_FILE,), _install_torch),
    "engine-cpu": locked("engine-cpu"),
    "engine-gpu": locked("engine-gpu"),
    "dev": locked("dev"),
    "examples": locked("examples"),
    "headrace": Part((ROOT / "pyproject.toml",), _install_project),
}
COMES_WITH = {"engine-cpu": ("torch-cpu",), "gateway": ("guard-models", "headrace")}


def wanted_parts(names: list[str]) -> list[str]:
    """Returns `names` and what comes with them, in the order of `PARTS`."""
    chosen = set(names).union(*(COMES_WITH.get(name, ()) for name in names))
    return [name for name in PARTS if name in chosen]


def main() -> None:
    """Installs the parts named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS), metavar="PART")
    names = wanted_parts(parser.parse_args().parts)
    _make_venv()
    installed = False
    for name in names:
        part, stamp = PARTS[name], VENV / "headrace-stamps" / name
        digest = _digest(part)
        if stamp.exists() and stamp.read_text() == digest:
            continue
        started = time.monotonic()
        part.install(name)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest)
        installed = True
        sys.stdout.write(f"  {name}: installed in {time.monotonic() - started:.0f} s\n")
    if installed:
        _compile()


def _make_venv() -> None:
    if (
        PYTHON.exists()
        and subprocess.run([PYTHON, "-c", "import pip"], check=False, capture_output=True).returncode == 0
    ):
        return
    sys.stdout.write("  making .venv\n")
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise InstallError(
            f"{sys.executable} -m venv failed (on Debian: apt-get install python3-venv).\n{done.stdout}{done.stderr}"
        )


def _pip(label: str, *arguments: str, total: int) -> None:
    """Runs `pip install`, showing how far it is on a terminal; what it said is shown when it fails."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command.append("--no-compile")  # see _compile
    sys.stdout.write(f"  {label}: {total} package{'s' if total > 1 else ''}\n")
    sys.stdout.flush()
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as pip:
        assert pip.stdout is not None  # noqa: S101
        output = list(_shown(label, pip.stdout, total))
    if pip.returncode != 0:
        raise InstallError(f"pip could not install {label}:\n" + "".join(output[-25:]))


def _compile() -> None:
    """Compiles what is new, on all cores; pip does it on one, in about half of its time."""
    started = time.monotonic()
    packages = VENV.glob("lib/python*/site-packages")
    command = [str(PYTHON), "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", *packages]
    # Some packages bring templates that are no Python yet. What is not compiled here is when it is imported.
    subprocess.run(command, check=False, capture_output=True)
    sys.stdout.write(f"  compiled in {time.monotonic() - started:.0f} s\n")


def _shown(label: str, lines: Iterator[str], total: int) -> Iterator[str]:
    """Yields the lines on and keeps one line of progress on a terminal."""
    seen, is_terminal = 0, sys.stdout.isatty()
    for line in lines:
        yield line
        if not is_terminal:
            continue
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            seen += 1
            name = line.removeprefix("Requirement already satisfied: ").removeprefix("Collecting ").split("==")[0]
            sys.stdout.write(f"\r\x1b[K  {label}: fetching {seen}/{total} {name.strip()[:40]}")
        elif line.startswith("Installing collected packages"):
            sys.stdout.write(f"\r\x1b[K  {label}: unpacking")
        sys.stdout.flush()
    if is_terminal:
        sys.stdout.write("\r\x1b[K")


def _count(file: Path) -> int:
    return sum(1 for line in file.read_text().splitlines() if line[:1].isalnum())


def _digest(part: Part) -> str:
    digest = hashlib.sha256(f"{sys.platform} {ROOT}\n".encode())
    for file in part.inputs:
        digest.update(file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  the machine's Python may be any
        sys.exit(f"Headrace needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=...")
    try:
        main()
    except InstallError as error:
        sys.exit(str(error))
