"""Issue G promises a page within 200 ms of server time, of 90 days and 200 tenants.

Counted is the server's own time on a processor, database included where it is SQLite: how long it waits for one is the
affair of the machine's other work. How many queries it makes is fixed (`test_pages`).
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from time import perf_counter, process_time

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.ops.enums import FleetSpan
from apps.ops.latency.asked import RANGES
from apps.ops.latency.scopes import floor_to
from apps.ops.models import FleetSample, LatencyHour
from apps.tenants.models import Membership, Tenant
from tests.support.latencies import latencies_seed

TENANTS = 200
DEPLOYMENTS = ("tiny", "large", "code")
PROMISED_SECONDS = 0.2
ATTEMPTS = 5
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

pytestmark = [pytest.mark.django_db, pytest.mark.alone]


@pytest.mark.usefixtures("live_redis")
def test_pages_and_numbers_take_less_than_200_ms_with_90_days_of_200_tenants(
    admin_client: Client, client: Client, membership: Membership
) -> None:
    now = timezone.now()
    Tenant.objects.bulk_create(Tenant(slug=f"t-{n}", name=f"Tenant {n}") for n in range(TENANTS - 1))
    others = Tenant.objects.exclude(pk=membership.tenant_id).values_list("pk", flat=True)
    latencies_seed([membership.tenant_id, *others], now=now)
    FleetSample.objects.bulk_create(_samples(now), batch_size=500)
    assert LatencyHour.objects.count() > 400_000
    client.force_login(membership.user)
    page, numbers = reverse("admin:ops_latencyhour_changelist"), reverse("admin:ops_latencyhour_numbers")
    tenant = str(membership.tenant_id)
    asked = [
        ("page", admin_client, page, {}),
        ("own page", client, reverse("ops:own_latency"), {}),
        *((f"all, {name}", admin_client, numbers, {"range": name}) for name in RANGES),
        *((f"tenant, {name}", admin_client, numbers, {"range": name, "tenant": tenant}) for name in ("24h", "90d")),
        *((f"own, {name}", client, reverse("ops:own_latency_numbers"), {"range": name}) for name in ("24h", "90d")),
    ]
    slow = {}
    for name, who, url, query in asked:
        on_processor, waited = _fastest(who, url, query)
        print(f"{name:12} {on_processor * 1000:6.1f} ms on a processor, {waited * 1000:6.1f} ms in all")
        if on_processor > PROMISED_SECONDS:
            slow[name] = on_processor
    assert not slow


def _fastest(client: Client, url: str, query: dict[str, str]) -> tuple[float, float]:
    attempts = []
    for _ in range(ATTEMPTS):
        began, began_on_processor = perf_counter(), process_time()
        answer = client.get(url, query)
        attempts.append((process_time() - began_on_processor, perf_counter() - began))
        assert answer.status_code == 200
    return min(on_processor for on_processor, _ in attempts), min(waited for _, waited in attempts)


def _samples(now: datetime) -> Iterator[FleetSample]:
    """All hours, and the minutes that a page reads at most."""
    for span, step, length in ((FleetSpan.HOUR, HOUR, 90 * 24 * HOUR), (FleetSpan.MINUTE, MINUTE, 24 * HOUR)):
        at = floor_to(now - length, step)
        while at + step <= now:
            for name in DEPLOYMENTS:
                yield FleetSample(span=span, at=at, deployment=name, running=3.0, waiting=1.0, kv_cache_usage=0.4)
            at += step
