"""What `/metrics` says and who may read it.

Where `PROMETHEUS_MULTIPROC_DIR` is set, all processes of the machine share their counters in files there, and any of
them answers for all; values of processes that are gone leave the "live" gauges.
"""

import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

_FILE_OF_PROCESS = re.compile(r"_(\d+)\.db\Z")


def metrics_allowed(scope: Mapping[str, Any], *, token: str | None) -> bool:
    """Whether a request may read the metrics: by bearer token where one is set, else from this machine itself.

    A request that a proxy passed on is not from this machine, wherever the proxy runs.
    """
    headers = dict(scope["headers"])
    if token is not None:
        presented = headers.get(b"authorization", b"")
        return hmac.compare_digest(presented, f"Bearer {token}".encode())
    if b"x-forwarded-for" in headers or b"forwarded" in headers:
        return False
    client = scope.get("client")
    return client is not None and _is_loopback(client[0])


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def metrics_render(accept: str) -> tuple[str, bytes]:
    """Returns content type and text of all metrics. Reads files: call it in a thread."""
    encode, content_type = choose_encoder(accept)
    directory: Path | None = settings.HEADRACE_METRICS_DIRECTORY
    registry = REGISTRY
    if directory is not None:
        dead_processes_forget(directory)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return content_type, encode(registry)


def dead_processes_forget(directory: Path) -> None:
    """Removes the live gauges of processes that are gone; their counters stay, they did happen."""
    found = {int(match[1]) for path in directory.glob("*.db") if (match := _FILE_OF_PROCESS.search(path.name))}
    for pid in found:
        if not psutil.pid_exists(pid):
            mark_process_dead(pid, path=str(directory))  # type: ignore[no-untyped-call]
