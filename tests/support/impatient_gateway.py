"""A second gateway whose tenant cuts off clients that acknowledge nothing for a second."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port

_CHANGE = (
    "from apps.tenants.models import Tenant\n"
    "from apps.tenants.services import tenant_update\n"
    "for tenant in Tenant.objects.all():\n"
    "    for field, value in {fields!r}.items(): setattr(tenant, field, value)\n"
    "    tenant_update(tenant=tenant)\n"
)
_AS_BY_DEFAULT = {"stall_timeout_seconds": 60.0, "detached_policy": "finish", "detached_grace_seconds": 30.0}


@contextmanager
def impatient_gateway(stack: LiveStack, **fields: str | float) -> Iterator[tuple[Process, str]]:
    """Start it; yield it and its address. Its log says `client_stalled` for each client that it cut off.

    `fields` are further settings of the tenant meanwhile.
    """
    stack.run_django(_CHANGE.format(fields={"stall_timeout_seconds": 1.0, **fields}))
    port = free_port()
    gateway = stack.start_gateway(port)
    try:
        yield gateway, f"http://127.0.0.1:{port}"
    finally:
        gateway.stop()
        stack.processes.remove(gateway)
        stack.run_django(_CHANGE.format(fields=_AS_BY_DEFAULT))
