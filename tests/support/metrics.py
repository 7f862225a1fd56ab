"""What the processes of a stack say of themselves in Prometheus' text form."""

import time
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.live_stack import LiveStack

DEADLINE_SECONDS = 120.0
PAUSE_SECONDS = 0.05


def worker_metric(stack: LiveStack, name: str, **labels: str) -> float:
    """Returns the sum of a worker's samples that have these labels; the stack was given `HEADRACE_METRICS_PORT`."""
    return metric(f"http://127.0.0.1:{stack.environ['HEADRACE_METRICS_PORT']}", name, **labels)


def gateway_metric(stack: LiveStack, name: str, **labels: str) -> float:
    """Returns the sum of the gateway's samples that have these labels."""
    return metric(stack.base_url, name, **labels)


def wait_for(value: Callable[[], float], at_least: float) -> float:
    """Looks at a count until it has come so far: nothing tells when it changes.

    Raises:
        AssertionError: It did not in time.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (seen := value()) < at_least:
        assert time.monotonic() < deadline, f"{seen}, and {at_least} was awaited"
        time.sleep(PAUSE_SECONDS)
    return seen


def metric(base_url: str, name: str, **labels: str) -> float:
    """Returns the sum of a process' samples that have these labels."""
    answer = httpx.get(f"{base_url}/metrics", timeout=DEADLINE_SECONDS).raise_for_status()
    return sum(
        sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
