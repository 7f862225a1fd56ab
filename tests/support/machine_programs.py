"""Programs of the machine that some tests need: found, or installed from Debian's packages where that is possible."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.environment import child_environment

INSTALL_SECONDS = 300


class ProgramMissingError(Exception):
    """A program is not here and cannot be installed from here. The message says what to install."""


def ensure_program(program: str, *, package: str) -> Path:
    """Returns the path of `program`; installs Debian's `package` first where it is missing and we are root there.

    Raises:
        ProgramMissingError: It is not to be had.
    """
    path = f"{child_environment()['PATH']}:/usr/sbin:/sbin"
    # One installation at a time, also when several test processes ask.
    with (Path(tempfile.gettempdir()) / "headrace-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = shutil.which(program, path=path)
        if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
            _install(package)
            found = shutil.which(program, path=path)
    if found is None:
        msg = f"{program} is missing: install it (Debian: apt-get install {package})."
        raise ProgramMissingError(msg)
    return Path(found)


def _install(package: str) -> None:
    # RUNLEVEL=1 keeps an installed server from being started as a service.
    environ = child_environment(DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
    ):
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
        )
        if done.returncode != 0:
            msg = f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            raise ProgramMissingError(msg)
