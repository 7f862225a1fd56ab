"""Waiting for a started installation: first the gateway, then an engine that serves the model."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus

from headrace_launcher.errors import LaunchError

_LOOK_AGAIN_SECONDS = 0.25
_ANSWER_SECONDS = 5.0


async def wait_for_gateway(base_url: str, *, still_possible: Callable[[], None]) -> None:
    """Returns when `/readyz` says so. `still_possible` raises when waiting has become pointless."""
    while await asyncio.to_thread(_status, f"{base_url}/readyz") != HTTPStatus.OK:
        still_possible()
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def wait_for_model(base_url: str, *, model: str, api_key: str, still_possible: Callable[[], None]) -> None:
    """Returns when a worker serves `model`."""
    while not await asyncio.to_thread(_is_served, base_url, model, api_key):
        still_possible()
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  our own http URL
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _is_served(base_url: str, model: str, api_key: str) -> bool:
    request = urllib.request.Request(  # noqa: S310  our own http URL
        f"{base_url}/v1/models/{model}", headers={"Authorization": f"Bearer {api_key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            return bool(json.load(answer).get("ready"))
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED:
            # The gateway has a snapshot that does not know the key: another installation's Redis or database.
            raise LaunchError(
                "The gateway refuses the demo key: do REDIS_URL and DATABASE_URL belong together?"
            ) from error
        return False
    except (OSError, ValueError):
        return False
