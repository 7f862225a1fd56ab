import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_django import Settings

from apps.ops.health import HealthApplication
from tests.support.environment import child_environment

LOOPBACK = ("127.0.0.1", 5000)


async def ask(
    application: HealthApplication,
    path: str,
    *,
    method: str = "GET",
    client: tuple[str, int] | None = LOOPBACK,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of one request."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "client": client,
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    await application(scope, receive, send)
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def health(*reasons: str, metrics_token: str | None = None) -> HealthApplication:
    return HealthApplication(not_ready=lambda: list(reasons), metrics_token=metrics_token)


async def test_alive_says_nothing_of_readiness() -> None:
    status, headers, body = await ask(health("draining"), "/livez")
    assert (status, body) == (200, b'{"status":"alive"}')
    assert headers["cache-control"] == "no-store"


async def test_ready_follows_the_gateway_and_gives_its_reasons() -> None:
    reasons: list[str] = []
    application = HealthApplication(not_ready=lambda: reasons, metrics_token=None)
    assert (await ask(application, "/readyz"))[0] == 200
    reasons.append("draining")
    status, _, body = await ask(application, "/readyz")
    assert (status, msgspec.json.decode(body)) == (503, {"status": "not ready", "reasons": ["draining"]})


async def test_head_has_no_body_and_post_is_refused() -> None:
    status, headers, body = await ask(health(), "/livez", method="HEAD")
    assert (status, headers["content-length"], body) == (200, "18", b"")
    assert (await ask(health(), "/readyz", method="POST"))[0] == 405


@pytest.mark.parametrize(
    ("token", "client", "headers", "status"),
    [
        (None, LOOPBACK, {}, 200),
        (None, ("::1", 1), {}, 200),
        (None, ("127.8.8.8", 1), {}, 200),
        (None, ("::ffff:127.0.0.1", 1), {}, 200),
        (None, ("192.0.2.1", 1), {}, 403),
        (None, ("not-an-address", 1), {}, 403),
        (None, None, {}, 403),
        (None, LOOPBACK, {"x-forwarded-for": "192.0.2.1"}, 403),
        (None, LOOPBACK, {"forwarded": "for=192.0.2.1"}, 403),
        ("t0ken", LOOPBACK, {}, 403),
        ("t0ken", ("192.0.2.1", 1), {"authorization": "Bearer t0ken"}, 200),
        ("t0ken", ("192.0.2.1", 1), {"authorization": "Bearer t0ken2"}, 403),
        ("t0ken", ("192.0.2.1", 1), {"authorization": "Basic t0ken"}, 403),
        ("t0ken", ("192.0.2.1", 1), {"authorization": "Bearer é"}, 403),
    ],
)
async def test_metrics_are_for_token_or_loopback(
    token: str | None, client: tuple[str, int] | None, headers: dict[str, str], status: int
) -> None:
    answered, _, body = await ask(health(metrics_token=token), "/metrics", client=client, headers=headers)
    assert answered == status
    assert (b"python_info" in body) == (status == 200)


async def test_metrics_speak_the_asked_format() -> None:
    _, headers, _ = await ask(health(), "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert headers["content-type"].startswith("application/openmetrics-text")
    _, headers, _ = await ask(health(), "/metrics")
    assert headers["content-type"].startswith("text/plain")


COUNT = """
import sys
from prometheus_client import Counter, Gauge
Counter("headrace_test_things_total", "Things.").inc(int(sys.argv[1]))
Gauge("headrace_test_open", "Open.", multiprocess_mode="livesum").set(7)
"""


async def test_metrics_add_up_over_processes_and_forget_the_open_of_dead_ones(
    tmp_path: Path, settings: Settings
) -> None:
    environ = child_environment(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    for amount in ("3", "4"):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", COUNT, amount, env=environ)
        assert await process.wait() == 0
    settings.HEADRACE_METRICS_DIRECTORY = tmp_path

    status, _, body = await ask(health(), "/metrics")
    assert status == 200
    assert b"headrace_test_things_total 7.0" in body
    assert b"headrace_test_open 7" not in body
    assert b"headrace_test_open 14" not in body


async def test_metrics_keep_the_open_of_living_processes(tmp_path: Path, settings: Settings) -> None:
    environ = child_environment(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    waiting = f"{COUNT}\nprint('ready', flush=True)\nsys.stdin.read()"
    settings.HEADRACE_METRICS_DIRECTORY = tmp_path
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", waiting, "1", env=environ, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    _, _, body = await ask(health(), "/metrics")
    assert b"headrace_test_open 7.0" in body
    await process.communicate(b"")
