"""A second gateway whose tenant cuts off clients that acknowledge nothing for a second."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port

_SET_TIMEOUT = (
    "from apps.tenants.models import Tenant\n"
    "from apps.tenants.services import tenant_update\n"
    "for tenant in Tenant.objects.all():\n"
    "    tenant.stall_timeout_seconds = {seconds}\n"
    "    tenant_update(tenant=tenant)\n"
)


@contextmanager
def impatient_gateway(stack: LiveStack) -> Iterator[tuple[Process, str]]:
    """Start it; yield it and its address. Its log says `client_stalled` for each client that it cut off."""
    stack.run_django(_SET_TIMEOUT.format(seconds=1.0))
    port = free_port()
    gateway = stack.start_gateway(port)
    try:
        yield gateway, f"http://127.0.0.1:{port}"
    finally:
        gateway.stop()
        stack.processes.remove(gateway)
        stack.run_django(_SET_TIMEOUT.format(seconds=60.0))
