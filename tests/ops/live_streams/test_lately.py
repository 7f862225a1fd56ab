"""What stands beside live streams: what operators did, and what guardrails found."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.accounts.models import User
from apps.guardrails.enums import Action, Direction, Outcome
from apps.guardrails.models import Intervention
from apps.tenants.models import Tenant

from .conftest import PaperFleet

LIVE = reverse("admin:ops_livestream_live")
ACT = reverse("admin:ops_livestream_act")


def process_page(incarnation: str) -> str:
    return reverse("admin:ops_livestream_process", args=[incarnation])


def beside_of(answer: Any) -> str:
    """What stands beside the list, or the process."""
    return str(answer.content.decode().partition("live-beside")[2])


def found_store(tenant: Tenant, *, stream_id: str, rule_label: str, age: timedelta) -> None:
    """What the collector does with a finding."""
    Intervention.all_tenants.create(
        ref=f"{stream_id}-1",
        stream_id=stream_id,
        tenant=tenant,
        tenant_ref=tenant.pk.hex,
        tenant_label=tenant.name,
        deployment_label="tiny",
        policy_ref="policy",
        policy_label="Policy",
        policy_number=1,
        rule_label=rule_label,
        direction=Direction.OUTPUT,
        action=Action.MASK,
        outcome=Outcome.MASKED,
        start=0,
        end=4,
        occurred_at=timezone.now() - age,
    )


def test_what_was_done_and_found_stands_beside_it(
    admin_client: Client, paper: PaperFleet, tenant: Tenant, other_tenant: Tenant
) -> None:
    paper.worker("worker-1")
    paper.worker("worker-2")
    (stream_id,) = paper.admit(tenant_id=tenant.pk.hex)
    admin_client.post(ACT, {"verb": "kill", "stream": stream_id, "confirmed": "yes", "note": "runs wild"})
    admin_client.post(process_page("worker-1"), {"deadline_seconds": "30", "note": "new driver"})
    found_store(tenant, stream_id="strm-found", rule_label="card numbers", age=timedelta(minutes=5))
    found_store(tenant, stream_id="strm-long-ago", rule_label="old", age=timedelta(hours=2))
    beside = beside_of(admin_client.get(LIVE))
    for said in ("Worker drained", "new driver", "Stream ended by an operator", "runs wild", stream_id):
        assert said in beside
    assert "card numbers" in beside
    assert "strm-long-ago" not in beside
    assert beside.index("Worker drained") < beside.index("Stream ended"), "newest first"
    elsewhere = beside_of(admin_client.get(LIVE, {"tenant": str(other_tenant.pk)}))
    assert "Nothing in the last day." in elsewhere
    assert "Nothing in the last hour." in elsewhere
    of_worker = beside_of(admin_client.get(process_page("worker-1")))
    assert "new driver" in of_worker
    assert stream_id not in of_worker, "it had no worker"
    assert "new driver" not in beside_of(admin_client.get(process_page("worker-2")))


def test_who_may_not_see_the_lists_sees_nothing_of_them(client: Client, user: User, paper: PaperFleet) -> None:
    user.is_staff = True
    user.save()
    user.user_permissions.add(Permission.objects.get(codename="view_livestream"))
    client.force_login(user)
    paper.worker("worker-1")
    assert beside_of(client.get(LIVE)) == ""
    assert beside_of(client.get(process_page("worker-1"))) == ""
