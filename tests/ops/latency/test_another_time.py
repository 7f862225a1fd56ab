"""A time that is compared with another one that somebody names: of before a release, say."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.tenants.models import Tenant
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, summary_of

PAGE = reverse("admin:ops_latencyhour_changelist")
NUMBERS = reverse("admin:ops_latencyhour_numbers")
DIAGNOSIS = reverse("admin:ops_diagnosis")
FINDINGS = reverse("admin:ops_diagnosis_findings")

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("live_redis")]


@pytest.mark.parametrize("length", ["15m", "7d"])
def test_another_time_is_compared_by_its_end(admin_client: Client, tenant: Tenant, length: str) -> None:
    at = timezone.now() - timedelta(minutes=50)
    key = SeriesKey("tiny", tenant.pk.hex)
    latencies_file(str(uuid4()), at, {key: summary_of(requests=3)})
    latencies_file(str(uuid4()), timezone.now() - timedelta(minutes=1), {key: summary_of(requests=5)})
    asked = {"range": length, "compare": "other", "other": (at + timedelta(minutes=5)).isoformat()}
    told = admin_client.get(NUMBERS, asked).json()
    shift, step = told["before"]["shift"], told["step"]
    assert shift % step == 0
    assert abs(shift - 45 * 60) <= step, "as many whole steps as fit"
    if length == "15m":
        assert (told["totals"]["count.requests"], told["before"]["totals"]["count.requests"]) == (5, 3)
    page = admin_client.get(PAGE, asked).content.decode()
    assert '<option value="other" selected>' in page
    assert asked["other"][:16] in page


@pytest.mark.parametrize("name", ["end", "other"])
@pytest.mark.parametrize(
    "moment", ["0001-01-02", "0001-01-01T00:00:00+14:00", "1999-12-31", "2101-01-01", "9999-12-31T23:59:59-14:00"]
)
def test_the_first_and_last_years_are_no_time(admin_client: Client, name: str, moment: str) -> None:
    asked = {"compare": "other", "other": "2026-01-01", name: moment}
    for numbers in (NUMBERS, FINDINGS):
        answer = admin_client.get(numbers, asked)
        assert (answer.status_code, f"{name}: Times are from" in answer.json()["problem"]) == (400, True)
    for page in (PAGE, DIAGNOSIS):
        assert admin_client.get(page, asked).status_code == 200, "a page leaves it out"


def test_another_time_has_to_be_told(admin_client: Client) -> None:
    answer = admin_client.get(NUMBERS, {"compare": "other"})
    assert (answer.status_code, "other:" in answer.json()["problem"]) == (400, True)
    page = admin_client.get(PAGE, {"compare": "other"})
    assert page.status_code == 200
    assert '<option value="other" selected>' not in page.content.decode()
