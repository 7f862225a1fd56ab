"""Reads of adapters: for the snapshot, and where workers have them."""

from dataclasses import dataclass

from apps.deployments.adapters.enums import AdapterState
from apps.deployments.models import LoraAdapter, Worker
from headrace_wire.adapters import AdapterConfig


def adapter_configs() -> list[AdapterConfig]:
    """Returns the snapshot's section: those that are active and passed their check."""
    rows = LoraAdapter.all_tenants.filter(is_active=True, state=AdapterState.CHECKED).select_related("deployment")
    return [
        AdapterConfig(
            id=row.pk.hex,
            tenant_id=row.tenant_id.hex,
            deployment=row.deployment.name,
            name=row.name,
            place=row.place,
            revision=row.revision,
            rank=row.rank or 0,
        )
        for row in rows.order_by("pk")
    ]


@dataclass(frozen=True, slots=True)
class AdapterAtWorker:
    """An adapter at one live worker of its deployment."""

    worker: Worker
    is_loaded: bool
    problem: str
    """Why not; empty where it is loaded, or was not asked for yet."""


def adapter_at_workers(*, adapter: LoraAdapter) -> list[AdapterAtWorker]:
    """Returns what each live worker has said last of the revision that callers get."""
    found = []
    for worker in Worker.objects.filter(deployment=adapter.deployment, ended_at__isnull=True):
        report = worker.adapters.get(adapter.pk.hex) or {}
        is_current = report.get("revision") == adapter.revision
        problem = str(report.get("problem") or "") if is_current else ""
        found.append(AdapterAtWorker(worker, is_current and not problem, problem))
    return found
