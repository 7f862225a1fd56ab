"""A load that comes and goes, with the real supervisor, Celery, beat and workers of `make up`; times are scaled down.

A request wakes a deployment that has no worker, a load takes it to three, and without it there is one again. Two beats
run, Celery is killed while a decision is under way, and every stream has every token once.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from headrace_wire.supervisor_control import WorkersAsked, ask
from tests.launcher.test_up import END_SECONDS, READY, Installation
from tests.support.environment import REPOSITORY_ROOT
from tests.support.processes import Process, run_to_end
from tests.support.stream_probe import StreamProbe

NAME = "elastic"
TICK = 1
LONG, SHORT = 900, 250
"""Tokens, 20 a second."""
PATIENCE_SECONDS = 120.0
SET_UP = f"""
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks
from apps.deployments.autoscale.services import autoscale_policy_create
from apps.deployments.models import AutoscalePolicy, ModelDeployment
from apps.deployments.services import deployment_create
deployment = deployment_create(deployment=ModelDeployment(
    name="{NAME}", model="simulated", engine="simulated", max_num_seqs=4, engine_args={{"ttft_ms": 50, "tpot_ms": 50}}
))
autoscale_policy_create(policy=AutoscalePolicy(
    deployment=deployment, mode="on", min_workers=0, max_workers=3, scale_out_seconds=4, scale_in_seconds=5,
    cooldown_seconds=2, start_seconds=60, idle_seconds=3600, drain_seconds=3, queue_goal_seconds=0,
))
every, _ = IntervalSchedule.objects.get_or_create(every={TICK}, period="seconds")
PeriodicTask.objects.filter(name="Autoscale").update(interval=every, expire_seconds=5)
PeriodicTasks.update_changed()
"""


class Scaled(Installation):
    """An installation whose decisions can be read."""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "HEADRACE_AUTOSCALE_SECONDS": str(TICK), "HEADRACE_SETTINGS": "development"}

    @property
    def database(self) -> Path:
        return self.state_dir / "headrace.sqlite3"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.state_dir.resolve() / 'redis' / 'redis.sock'}"

    @property
    def django(self) -> dict[str, str]:
        """What its own processes are told."""
        secret = (self.state_dir / "secret_key").read_text()
        stores = {"DATABASE_URL": f"sqlite:///{self.database}", "REDIS_URL": self.redis_url}
        return {**self.environ, **stores, "HEADRACE_SECRET_KEY": secret}

    def decisions(self) -> list[tuple[int, int, str, str, str]]:
        """Before, target, rule, result, reason."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as database:
            return database.execute(
                "SELECT before, target, rule, result, reason FROM deployments_scalingdecision ORDER BY at"
            ).fetchall()

    def steps(self) -> list[tuple[int, int, str]]:
        return [row[:3] for row in self.decisions()]

    @property
    def wanted(self) -> int:
        return ask(self.state_dir, WorkersAsked(NAME)).wanted

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        if not await asyncio.to_thread(came_to_hold, holds):
            pytest.fail(f"{what} did not happen; decisions: {self.decisions()}\n{self.runs[-1].log[-6000:]}")


def came_to_hold(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Scaled]:
    scaled = Scaled(tmp_path / "state")
    scaled.start().wait_for_line(READY, timeout=2 * PATIENCE_SECONDS)
    run_to_end([sys.executable, "manage.py", "shell", "--no-imports", "-c", SET_UP], scaled.django)
    beat = [sys.executable, "-m", "celery", "--quiet", "-A", "headrace.celery:app", "beat", "--pidfile", ""]
    with Process(beat, name="second beat", environ=scaled.django, cwd=REPOSITORY_ROOT):
        yield scaled
    for run in scaled.runs:
        run.stop(timeout=END_SECONDS)


async def stream(client: httpx.AsyncClient, tokens: int, told: list[str]) -> tuple[str, str, str, int]:
    """Returns id, text, finish reason and completion tokens of a streamed answer; `told` gets its comments."""
    body = {
        "model": NAME,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Tell me something."}],
    }
    text, finish, counted = "", "", 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        stream_id = answer.headers["x-headrace-stream-id"]
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                told.append(line)
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
    return stream_id, text, finish, counted


async def test_load_up_and_down_moves_workers_and_loses_no_stream(installation: Scaled) -> None:
    assert installation.wanted == 0
    headers = {"Authorization": f"Bearer {installation.up_json['api_key']}"}
    base_url = f"http://127.0.0.1:{installation.port}"
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=180) as client:
        told: list[str] = []
        long = [asyncio.create_task(stream(client, LONG, told)) for _ in range(2)]
        short = [asyncio.create_task(stream(client, SHORT, told)) for _ in range(6)]
        await installation.until("the load's workers", lambda: installation.wanted == 3)
        assert sum("reason=no_worker" in line for line in told) == len(long + short), told
        assert installation.steps()[:2] == [(0, 1, "wake_up"), (1, 3, "scale_out")]
        answers = [(SHORT, await answer) for answer in short]
        await installation.until(
            "a drain", lambda: [row[3] for row in installation.decisions() if row[2] == "scale_in"] == ["decided"]
        )
        os.kill(celery_pid(installation), signal.SIGKILL)
        await installation.until("one worker again", lambda: installation.wanted == 1)
        answers += [(LONG, await answer) for answer in long]

    await installation.until(
        "the end of decisions", lambda: "decided" not in {row[3] for row in installation.decisions()}
    )
    assert installation.steps() == [
        (0, 1, "wake_up"),
        (1, 3, "scale_out"),
        (3, 2, "scale_in"),
        (2, 1, "scale_in"),
    ]
    assert {row[3] for row in installation.decisions()} == {"done"}
    assert all(row[4] for row in installation.decisions()), "each says why"
    probe = StreamProbe(installation.redis_url)
    for wanted, (stream_id, text, finish, counted) in answers:
        assert (finish, counted) == ("length", wanted)
        assert text == probe.text(stream_id)


def celery_pid(installation: Scaled) -> int:
    pids = installation.up_json["pids"]
    return int(next(pid for name, pid in pids.items() if name.startswith("celery-")))
