"""What the apps above drop with a tenant beside its rows: what is kept for it in Redis.

They put their part in at start (`AppConfig.ready`), as with sections of the snapshot: this app knows none of them.
"""

from collections.abc import Callable

from django.db import transaction

from apps.tenants.models import Tenant

Drop = Callable[[], object]
Prepare = Callable[[Tenant], Drop]

_preparations: list[Prepare] = []


def removal_register(prepare: Prepare) -> None:
    """Has `prepare` called before a tenant's rows go; what it returns is called once they are gone for good."""
    _preparations.append(prepare)


def removal_prepare(tenant: Tenant) -> None:
    """Has everything dropped when the running transaction is committed; one part's failure does not keep another's."""
    for drop in [prepare(tenant) for prepare in _preparations]:
        transaction.on_commit(drop, robust=True)
