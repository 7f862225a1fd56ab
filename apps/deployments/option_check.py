"""The dry run of a deployment's options: a process of the worker's kind makes the engine's configuration, or cannot.

It imports vLLM, which a gateway never does: hence a process of its own, of low priority, one at a time.
"""

import asyncio
import sys

import msgspec
from django.utils.translation import gettext as _

from headrace_wire.engine_check import EngineCheck, decode_check
from headrace_wire.snapshot import DeploymentConfig, EngineKind

DEADLINE_SECONDS = 180.0
"""Imports take about ten seconds on an idle machine, and many times that on a busy one."""

_OUTPUT_BYTES = 1 << 20

_running: set[str] = set()
"""Names of the deployments that are being judged in this process: one at most."""


class CheckUnavailableError(Exception):
    """Nothing is known of the options; the message says why, for the person at the form."""


async def deployment_check(config: DeploymentConfig) -> EngineCheck:
    """Returns what the engine says to a deployment.

    Raises:
        CheckUnavailableError: Another one is being judged, vLLM is not installed here, or it took too long.
    """
    if _running:
        raise CheckUnavailableError(_("Another check is running. Try again when it is done."))
    _running.add(config.name)
    try:
        return await _judged(config)
    finally:
        _running.discard(config.name)


async def _judged(config: DeploymentConfig) -> EngineCheck:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "headrace_worker", "--check"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_OUTPUT_BYTES,
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer, errors = await process.communicate(msgspec.json.encode(config))
    except TimeoutError:
        raise CheckUnavailableError(
            _("There was no answer within %d seconds. Is the model's address reachable from here?") % DEADLINE_SECONDS
        ) from None
    finally:
        if process.returncode is None:  # too late, or the person has left
            process.kill()
            await process.wait()
    try:
        return decode_check(answer)
    except msgspec.DecodeError as error:
        raise CheckUnavailableError(_unavailable(config, errors.decode(errors="replace"))) from error


def _unavailable(config: DeploymentConfig, errors: str) -> str:
    if config.engine is EngineKind.VLLM and "No module named 'vllm'" in errors:
        return _("vLLM is not installed beside this gateway, so types and ranges are all that was checked here.")
    return _("The check ended without an answer: %s") % (errors.strip().rpartition("\n")[2][-300:] or "-")
