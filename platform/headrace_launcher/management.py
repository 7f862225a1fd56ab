"""Django management commands as child processes: the launcher itself never imports Django."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from os import getpid
from typing import Self

from headrace_launcher.environment import REPOSITORY_ROOT
from headrace_launcher.errors import LaunchError
from headrace_launcher.parent_death import lead_group_and_follow_parent


async def manage(*arguments: str, environ: Mapping[str, str]) -> str:
    """Runs `manage.py` with `arguments` and returns what it printed.

    Raises:
        LaunchError: The command failed; the message carries its output.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(REPOSITORY_ROOT / "manage.py"),
        *arguments,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=partial(lead_group_and_follow_parent, getpid()),
    )
    try:
        output, complaints = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        text = (output + complaints).decode(errors="replace")
        raise LaunchError(f"manage.py {arguments[0]} failed:\n{text[-4000:].rstrip()}")
    return output.decode()


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody who may sign in."""

    email: str
    password: str

    def as_json(self) -> dict[str, str]:
        """Returns the form of `up.json`."""
        return {"email": self.email, "password": self.password}


@dataclass(frozen=True, slots=True)
class DemoData:
    """What `manage.py seed_demo --json` made, or found made by an earlier run."""

    admin: Account
    user: Account
    api_key: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the last line of the command's output.

        Raises:
            LaunchError: It is not what was agreed.
        """
        try:
            content = json.loads(text.strip().splitlines()[-1])
            accounts = [Account(content[who]["email"], content[who]["password"]) for who in ("admin", "user")]
            return cls(accounts[0], accounts[1], content["api_key"], content["model"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"manage.py seed_demo answered in an unknown form ({error!r}).") from error
