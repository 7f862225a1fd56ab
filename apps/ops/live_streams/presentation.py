"""Live streams and the fleet in words for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from apps.ops.live_streams.fleet import Fleet
from apps.ops.live_streams.selectors import LiveStream, Phase
from apps.tenants.models import Tenant
from headrace_wire.api_key import redact
from headrace_wire.fleet import GatewayInfo, WorkerInfo, WorkerState

_PHASE_COLOURS = {
    Phase.QUEUED: "warning",
    Phase.PREFILL: "info",
    Phase.DECODE: "success",
    Phase.HELD: "warning",
    Phase.SUSPENDED: "warning",
    Phase.ENDING: "danger",
}
_STATE_COLOURS = {
    WorkerState.LOADING: "info",
    WorkerState.READY: "success",
    WorkerState.DRAINING: "warning",
    WorkerState.BROKEN: "danger",
    WorkerState.SLEEPING: "info",
}


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One line of the list."""

    stream: LiveStream
    colour: str
    tenant: str
    credit: str
    lag: str
    age: str
    links: list[tuple[str, str]]
    """Words and addresses of what else is known of it."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One worker or gateway."""

    incarnation: str
    kind: str
    place: str
    state: str
    colour: str
    load: str
    left: str
    """Of a drain: what is left, and how long. Of a quarantine: how long it is, and why."""
    url: str
    is_drained: bool = False


def stream_rows(streams: Sequence[LiveStream], *, may_see: Sequence[str]) -> list[StreamRow]:
    """Returns lines; `may_see` are the admin pages that may be linked. One query."""
    ids = {stream.tenant_id for stream in streams}
    names = {tenant.pk.hex: tenant.name for tenant in Tenant.objects.filter(pk__in=ids).only("name")}
    return [
        StreamRow(
            stream,
            _PHASE_COLOURS[stream.phase],
            names.get(stream.tenant_id, stream.tenant_id),
            f"{stream.credit - stream.tokens} / {stream.window}" if stream.window else "-",
            "-" if stream.lag is None else str(stream.lag),
            duration_told(stream.age),
            [(word, f"{reverse(f'admin:{page}_changelist')}?q={stream.stream_id}") for page, word in _pages(may_see)],
        )
        for stream in streams
    ]


def fleet_rows(fleet: Fleet) -> list[ProcessRow]:
    """Returns all processes, by deployment."""
    workers = sorted(fleet.workers.values(), key=lambda one: (one.deployment, one.started_at))
    gateways = sorted(fleet.gateways.values(), key=lambda one: one.started_at)
    return [*(worker_row(one, fleet) for one in workers), *(gateway_row(one) for one in gateways)]


def worker_row(worker: WorkerInfo, fleet: Fleet) -> ProcessRow:
    """Returns a worker's line."""
    is_drained = worker.state is WorkerState.DRAINING and not worker.num_streams
    state = _("quarantined") if worker.state is WorkerState.BROKEN and worker.quarantined_at else worker.state.value
    return ProcessRow(
        worker.incarnation,
        _("worker of %(deployment)s") % {"deployment": worker.deployment},
        f"{worker.host}, {worker.pid}",
        _("drained") if is_drained else state,
        _STATE_COLOURS[worker.state],
        _("%(streams)d streams, %(held)d held") % {"streams": worker.num_streams, "held": worker.num_requests_held},
        _worker_left(worker, fleet) if worker.state is WorkerState.DRAINING else _quarantine_told(worker, fleet),
        reverse("admin:ops_livestream_process", args=[worker.incarnation]),
        is_drained,
    )


def gateway_row(gateway: GatewayInfo) -> ProcessRow:
    """Returns a gateway's line."""
    load = _("%(streams)d streams, %(connections)d connections") % {
        "streams": gateway.streams,
        "connections": gateway.connections,
    }
    return ProcessRow(
        gateway.incarnation,
        _("gateway"),
        f"{gateway.host}, {gateway.pid}",
        gateway.state.value,
        _STATE_COLOURS[gateway.state],
        load,
        _("%(load)s left; it ends when they have") % {"load": load} if gateway.state is WorkerState.DRAINING else "",
        reverse("admin:ops_livestream_process", args=[gateway.incarnation]),
    )


def duration_told(age: timedelta) -> str:
    """Returns 4.2 s, 3:05 min or 2:05 h."""
    seconds = age.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


def _quarantine_told(worker: WorkerInfo, fleet: Fleet) -> str:
    if not worker.quarantined_at:
        return ""
    seconds = max(0.0, fleet.at.timestamp() - worker.quarantined_at)
    told = _("for %(time)s: it starts no engine until it is resumed, or its deployment has other engine options.")
    return f"{told % {'time': duration_told(timedelta(seconds=seconds))}} {redact(worker.last_error)[-500:]}"


def _worker_left(worker: WorkerInfo, fleet: Fleet) -> str:
    reason = f" ({worker.drain_reason})" if worker.drain_reason else ""
    if not worker.num_streams:
        after = _("it is ending") if worker.is_leaving else _("it takes nothing until it is resumed")
        return _("nothing left; %(after)s") % {"after": after} + reason
    seconds = worker.drain_until - fleet.at.timestamp()
    said = _("%(count)d streams left") % {"count": worker.num_streams}
    when = (
        _("those left in %(time)s go on elsewhere") % {"time": duration_told(timedelta(seconds=seconds))}
        if seconds > 0
        else _("they are being handed over")
    )
    nowhere = "" if fleet.others_ready(worker) else " " + _("No other worker is ready: they will wait in the queue.")
    return f"{said}; {when}{reason}.{nowhere}"


def _pages(may_see: Sequence[str]) -> list[tuple[str, Any]]:
    pages = [
        ("usage_usagerecord", _("ledger")),
        ("guardrails_intervention", _("interventions")),
        ("tenants_auditevent", _("audit")),
    ]
    return [(page, word) for page, word in pages if page in may_see]
