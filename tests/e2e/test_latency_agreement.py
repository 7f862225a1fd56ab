"""The dashboard's percentiles are those that clients measured: on the same streams, over both transports.

Clients note when their host had each text, and the gateway's host when it had each request. Between the two is what
either may lose between its look at the clock and its write; how late the gateway was meanwhile is measured by pings,
and allowed for.
"""

import asyncio
import signal
from functools import partial
from typing import Any

import httpx
import pytest

from headrace_wire.latency.measures import Measure
from tests.load.latency_case import SHARES, LatencyLoad, Seen, seen_answers, us_per_token
from tests.load.measurements import percentile
from tests.load.stamped_clients import stamped_sse_client, stamped_websocket_client
from tests.support.live_stack import LiveStack
from tests.support.processes import free_port
from tests.support.signing_in import sign_in

pytestmark = pytest.mark.alone

MODEL = "slow"
LOAD = LatencyLoad(streams=8, answers=2, tokens=30, ttft_ms=100, tpot_ms=50)
"""Of `MODEL`, as `conftest` has it: 20 tokens per second."""
ERROR = 0.02
LATE_SHARE = 0.99
"""Of all ways to the gateway and back, those that are allowed for."""

KEY = """
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.tenants.models import Tenant
key, token = api_key_create(api_key=ApiKey(tenant=Tenant.objects.get(slug="demo"), name="Agreement"))
print("key", key.pk.hex, token.reveal())
"""


@pytest.fixture(scope="module")
def key(live_stack: LiveStack) -> tuple[str, str]:
    """A key's id and secret: what the page shows of it is ours alone."""
    word, key_id, secret = live_stack.run_django(KEY).splitlines()[-1].split()
    assert word == "key"
    return key_id, secret


@pytest.fixture(scope="module")
def seen(live_stack: LiveStack, key: tuple[str, str]) -> Seen:
    """Have streams over a gateway of our own and end it, upon which it files what it has."""
    port, (_, secret) = free_port(), key
    gateway = live_stack.start_gateway(port)
    connects = [
        partial(connect, "127.0.0.1", port, model=MODEL, key=secret)
        for connect in (stamped_sse_client, stamped_websocket_client) * (LOAD.streams // 2)
    ]
    seen = asyncio.run(seen_answers(LOAD, connects, port, secret))
    gateway.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0
    return seen


@pytest.fixture(scope="module")
def shown(live_stack: LiveStack, key: tuple[str, str], seen: Seen) -> dict[str, Any]:
    """What the page shows for the key."""
    assert seen.answers
    with httpx.Client(base_url=live_stack.base_url, follow_redirects=True, timeout=30) as http:
        sign_in(http, live_stack, live_stack.admin)
        answer = http.get(
            "/admin/ops/latencyhour/numbers/", params={"range": "15m", "key": key[0], "deployment": MODEL}
        )
    assert answer.status_code == 200, answer.text
    totals: dict[str, Any] = answer.json()["totals"]
    assert totals["count.requests"] == len(seen.answers) == LOAD.streams * LOAD.answers
    return totals


def test_the_clients_were_not_late_themselves(seen: Seen) -> None:
    texts = sum(len(answer.arrivals) for answer in seen.answers)
    assert sum(sum(answer.tokens) for answer in seen.answers) == LOAD.streams * LOAD.answers * LOAD.tokens
    assert seen.shared_stamps < texts / 2, "else this compares nothing"
    assert len(seen.ways) > 10


@pytest.mark.parametrize("measure", [Measure.TTFT, Measure.GAP, Measure.TOTAL])
def test_percentiles_are_those_of_clients(seen: Seen, shown: dict[str, Any], measure: Measure) -> None:
    durations = seen.durations[measure]
    late = percentile(seen.ways, LATE_SHARE)
    # A text that was late belongs to two gaps, and so does one that shares its stamp.
    others = 2 * (1 - LATE_SHARE) + 2 * seen.shared_stamps / len(durations) if measure is Measure.GAP else 0.0
    told = []
    for share in SHARES:
        book = shown[f"{measure}.p{share * 100:g}"]
        lower, client, upper = (
            percentile(durations, min(1.0, max(0.0, at))) for at in (share - others, share, share + others)
        )
        told.append(
            f"p{share * 100:g}: client {client * 1e3:.1f} ms, page {book * 1e3:.1f} ms ({book / client - 1:+.2%})"
        )
        assert lower * (1 - ERROR) - late <= book <= upper * (1 + ERROR) + late, told
    print(f"{measure}: {'; '.join(told)}; late {late * 1e3:.1f} ms")


def test_a_token_costs_the_book_at_most_a_microsecond() -> None:
    assert us_per_token() <= 1.0
