"""`python -m headrace_launcher up`: from nothing to a served model, then running until a signal, then nothing left."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from headrace_launcher.control import Control
from headrace_launcher.demo_model import ensure_demo_model
from headrace_launcher.environment import LauncherEnvironment
from headrace_launcher.errors import LaunchError
from headrace_launcher.installation import (
    embedded_redis,
    require_free_port,
    require_usable_environment,
    service_kinds,
    worker_kind,
)
from headrace_launcher.management import DemoData, manage
from headrace_launcher.process_output import PrefixedOutput
from headrace_launcher.progress import ProgressBar
from headrace_launcher.readiness import wait_for_gateway, wait_for_model
from headrace_launcher.state_directory import StateDirectory
from headrace_launcher.supervisor import ProcessKind, Supervisor
from headrace_launcher.welcome import welcome

UP_FILE = "up.json"
SIMULATED_MODEL = "simulated"
"""Name of the model where the simulated engine was given none to imitate."""
_MAX_FAILED_STARTS = 4


def up(environment: LauncherEnvironment) -> int:
    """Runs an installation until SIGINT, SIGTERM or SIGHUP; returns the exit status.

    Raises:
        LaunchError: It cannot be started.
    """
    require_free_port(environment.host, environment.port)
    require_usable_environment(environment)
    state = StateDirectory.claim(environment.state_dir)
    try:
        model_path = _model_path(environment)
        return asyncio.run(_Launch(environment, state, model_path).run())
    finally:
        state.release()


def _model_path(environment: LauncherEnvironment) -> str:
    """Returns the path or Hugging Face id to serve, making the demo model where nothing else is wanted."""
    if environment.model is not None:
        path = Path(environment.model)
        return str(path.resolve()) if path.exists() else environment.model
    if environment.engine == "simulated":
        return SIMULATED_MODEL
    with ProgressBar("demo model") as progress:
        return str(ensure_demo_model(environment.state_dir / "models", progress=progress.step))


class _Launch:
    """One run: `run` reads like what happens."""

    def __init__(self, environment: LauncherEnvironment, state: StateDirectory, model_path: str) -> None:
        self._environment = environment
        self._state = state
        self._model_path = model_path
        self._model = Path(model_path).name
        self._started = time.monotonic()
        self._output = PrefixedOutput()
        self._supervisor = Supervisor(self._output, pass_fds=[state.lock_fd], on_change=self._write_up_file)
        self._demo: DemoData | None = None
        self._control: Control | None = None

    async def run(self) -> int:
        """Starts everything, waits for a signal, ends everything."""
        signalled = self._catch_signals()
        try:
            if not await self._unless(signalled, self._start()):
                await signalled.wait()
            self._say("ending")
        finally:
            if self._control is not None:
                await self._control.stop()
            await self._supervisor.stop()
            self._state.remove(UP_FILE)
        return 0

    async def _start(self) -> None:
        environ = await self._start_stores()
        await self._prepare_database(environ)
        demo = await self._seed(environ)
        kinds = service_kinds(self._environment, environ=environ, model=demo.model)
        for kind in kinds:
            self._supervisor.add(kind)
        await asyncio.gather(*(self._supervisor.scale(kind.name, 1) for kind in kinds))
        await self._listen(environ, demo.model)
        self._say("waiting for the gateway and the engine")
        async with asyncio.timeout(self._environment.ready_seconds):
            await wait_for_gateway(self._base_url, still_possible=self._require_starts)
            await wait_for_model(
                self._base_url, model=demo.model, api_key=demo.api_key, still_possible=self._require_starts
            )
        self._demo = demo
        self._write_up_file()
        self._welcome(demo)

    async def _listen(self, environ: dict[str, str], demo_model: str) -> None:
        """Lets Celery ask for workers: of the demo model, which run already, and of every other deployment."""

        def kind_of(deployment: str) -> ProcessKind:
            name = "worker" if deployment == demo_model else f"worker:{deployment}"
            return worker_kind(deployment, name, environ=environ)

        self._control = Control(self._supervisor, self._state.path, kind_of)
        await self._control.start()

    async def _start_stores(self) -> dict[str, str]:
        """Starts Redis where none was given; returns the environment of all other processes."""
        environment = self._environment
        redis_url = environment.redis_url
        if redis_url is None:
            kind, redis = embedded_redis(environment.state_dir)
            self._say(f"starting {redis.server.program.name} {'.'.join(map(str, redis.server.version))}")
            self._supervisor.add(kind)
            await self._supervisor.scale(kind.name, 1)
            await redis.wait_until_loaded(still_possible=self._require_starts)
            redis_url = redis.url
        return environment.child(
            REDIS_URL=redis_url,
            DATABASE_URL=environment.database_url or f"sqlite:///{environment.state_dir / 'headrace.sqlite3'}",
            HEADRACE_CHECKPOINT_DIR=str(environment.checkpoint_dir),
            HEADRACE_SECRET_KEY=environment.secret_key or self._state.secret_key(),
        )

    async def _prepare_database(self, environ: dict[str, str]) -> None:
        self._say("migrating the database")
        await manage("migrate", "--no-input", "--verbosity", "0", environ=environ)

    async def _seed(self, environ: dict[str, str]) -> DemoData:
        self._say("demo tenant, accounts, key and model")
        answer = await manage(
            "seed_demo",
            *("--state-file", str(self._environment.state_dir / "demo.json")),
            *("--model", self._model),
            *("--model-path", self._model_path),
            *("--engine", self._environment.engine),
            "--json",
            environ=environ,
        )
        return DemoData.parse(answer)

    def _require_starts(self) -> None:
        for name in self._supervisor.kinds:
            if self._supervisor.failures(name) >= _MAX_FAILED_STARTS:
                raise LaunchError(f"The {name} cannot be started; its output above says why.")

    @property
    def _base_url(self) -> str:
        host = self._environment.host
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  to be replaced
        return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{self._environment.port}"

    @property
    def _ws_url(self) -> str:
        return f"{self._base_url.replace('http', 'ws', 1)}/v1/ws"

    def _write_up_file(self) -> None:
        """Tells other programs how to reach this installation; only while it is ready."""
        demo = self._demo
        if demo is None:
            return
        self._state.write_json(
            UP_FILE,
            {
                "base_url": self._base_url,
                "ws_url": self._ws_url,
                "admin": demo.admin.as_json(),
                "user": demo.user.as_json(),
                "api_key": demo.api_key,
                "model": demo.model,
                "pids": {"supervisor": os.getpid(), **self._supervisor.pids},
            },
        )

    def _welcome(self, demo: DemoData) -> None:
        text = welcome(
            demo,
            base_url=self._base_url,
            ws_url=self._ws_url,
            up_json=str(self._state.path / UP_FILE),
            simulated=self._environment.engine == "simulated",
            seconds=time.monotonic() - self._started,
        )
        sys.stdout.write(text)
        sys.stdout.flush()

    def _say(self, text: str) -> None:
        self._output.line("up", text)

    def _catch_signals(self) -> asyncio.Event:
        signalled = asyncio.Event()

        def received() -> None:
            if signalled.is_set():
                self._supervisor.hurry()
            signalled.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, received)
        return signalled

    async def _unless(self, signalled: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
        """Runs `work` unless a signal comes first; returns whether one came.

        Raises:
            LaunchError: The work failed, or took longer than it may.
        """
        task, waiting = asyncio.create_task(work), asyncio.create_task(signalled.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return True
        try:
            task.result()
        except TimeoutError as error:
            seconds = self._environment.ready_seconds
            raise LaunchError(
                f"Not ready after {seconds:.0f} s (HEADRACE_READY_SECONDS); see the output above."
            ) from error
        return False
