"""What the latency page's lists offer, and what a member may ask for."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from apps.accounts.models import ApiKey
from apps.accounts.selectors import api_key_list, api_key_own_list
from apps.deployments.models import ModelDeployment, Worker
from apps.deployments.selectors import deployment_list
from apps.ops.latency.asked import CHAT
from apps.ops.latency.scopes import LatencyScope
from apps.tenants.models import Membership, Tenant
from apps.usage.selectors import usage_may_read_all

Option = tuple[str, str]
Choices = dict[str, list[Option]]

MOST = 300
"""Options of a list that nobody would read to its end; an address may name others."""
_WORKERS_SINCE = timedelta(days=2)


def operator_choices(scope: LatencyScope) -> Choices:
    """Returns the options of every list, the first of each for all of them."""
    names = ModelDeployment.objects.order_by("name").values_list("name", flat=True)
    tenants = Tenant.objects.order_by("name").values_list("pk", "name")
    return {
        "deployment": [("", _("All deployments")), *((name, name) for name in names)],
        "tenant": [("", _("All tenants")), *((str(pk), name) for pk, name in tenants)],
        "worker": [("", _("All workers")), *_workers(scope.deployment)],
        "key": _keys(scope.tenant_id),
    }


def member_choices(membership: Membership, memberships: list[Membership]) -> Choices:
    """Returns what a member may choose from: his tenants, and of the chosen one the models and keys."""
    keys = [(key.pk.hex, str(key)) for key in member_keys(membership)[:MOST]]
    names = member_deployments(membership)
    return {
        "deployment": [("", _("All models")), *((name, name) for name in names)],
        "tenant": [(str(one.tenant_id), one.tenant.name) for one in memberships],
        "key": [("", _("All keys and the chat")), (CHAT, _("The chat, without a key")), *keys],
    }


def member_keys(membership: Membership) -> Any:  # noqa: ANN401  # a query set
    """Returns the keys whose latencies a member may tell apart: those whose usage he may read."""
    reads_all = usage_may_read_all(tenant=membership.tenant, user_id=membership.user_id.hex)
    return api_key_list(tenant=membership.tenant) if reads_all else api_key_own_list(membership=membership)


def member_deployments(membership: Membership) -> list[str]:
    """Returns the names of the deployments that the member's tenant sees."""
    return list(deployment_list(tenant=membership.tenant).values_list("name", flat=True))


def _workers(deployment: str | None) -> list[Option]:
    lately = timezone.now() - _WORKERS_SINCE
    rows = Worker.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gte=lately))
    if deployment is not None:
        rows = rows.filter(deployment_name=deployment)
    return [
        (worker.pk, str(worker) if worker.ended_at is None else f"{worker}, {worker.get_state_display()}")
        for worker in rows[:MOST]
    ]


def _keys(tenant_id: UUID | None) -> list[Option]:
    if tenant_id is None:
        return [("", _("Choose a tenant first"))]
    rows = ApiKey.all_tenants.filter(tenant_id=tenant_id)[:MOST]
    return [
        ("", _("All keys and the chat")),
        (CHAT, _("The chat, without a key")),
        *((key.pk.hex, str(key)) for key in rows),
    ]
