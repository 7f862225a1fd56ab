"""What is done next in a restart, whatever has happened meanwhile."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from msgspec.structs import replace

from apps.deployments.models import RollingRestart
from apps.deployments.restarts.selectors import process_of
from apps.deployments.restarts.steps import Finish, Order, Replaced, Step, Stop, Wait, next_step
from headrace_wire.fleet import WorkerInfo, WorkerState

NOW = timezone.now()


def worker(number: int, options: str = "old", **fields: Any) -> WorkerInfo:
    told: dict[str, Any] = {"state": WorkerState.READY, "host": "node", "pid": number, "started_at": number, **fields}
    return WorkerInfo(incarnation=f"w{number}", deployment="tiny", engine="simulated", options=options, **told)


def restart(*known: WorkerInfo, current: str = "", age: float = 1.0) -> RollingRestart:
    since = NOW - timedelta(seconds=age)
    processes = [process_of(info) for info in known]
    return RollingRestart(size=3, current=current, known=processes, current_since=since, started_at=since)


def step(row: RollingRestart, *workers: WorkerInfo) -> Step:
    return next_step(row, {info.incarnation: info for info in workers}, "new", NOW)


ONE, TWO, THREE = worker(1), worker(2), worker(3)


def test_the_one_with_the_fewest_streams_goes_first() -> None:
    busy = [replace(info, num_streams=count) for info, count in ((ONE, 5), (TWO, 2), (THREE, 9))]
    assert step(restart(), *busy) == Order(busy[1])


def test_nobody_goes_while_another_is_missing() -> None:
    assert step(restart(), ONE, TWO) == Wait()
    assert step(restart(), ONE, TWO, replace(THREE, state=WorkerState.LOADING)) == Wait()
    late = step(restart(age=3600), ONE, TWO)
    assert isinstance(late, Stop)
    assert "Only 2 of 3" in late.reason


def test_an_order_that_was_lost_is_given_again() -> None:
    row = restart(ONE, TWO, THREE, current="w1")
    assert step(row, ONE, TWO, THREE) == Order(ONE)
    leaving = replace(ONE, state=WorkerState.DRAINING, is_leaving=True)
    assert step(row, leaving, TWO, THREE) == Wait()


def test_a_worker_with_a_new_lease_is_still_the_same_one() -> None:
    again = replace(ONE, incarnation="w1-again")
    assert step(restart(ONE, TWO, THREE, current="w1"), again, TWO, THREE) == Order(again)


def test_the_next_one_waits_for_the_successor() -> None:
    row = restart(ONE, TWO, THREE, current="w1")
    assert step(row, TWO, THREE) == Wait()
    assert step(row, TWO, THREE, worker(4, "new", state=WorkerState.LOADING)) == Wait()
    assert step(row, TWO, THREE, worker(4, "new")) == Replaced()
    renewed = replace(TWO, incarnation="w2-again")
    assert step(row, renewed, THREE) == Wait(), "another one's new lease is no successor"


def test_it_stops_at_a_broken_successor_and_says_why() -> None:
    broken = worker(4, "new", state=WorkerState.BROKEN, last_error="no such block size")
    found = step(restart(ONE, TWO, THREE, current="w1"), TWO, THREE, broken)
    assert isinstance(found, Stop)
    assert "no such block size" in found.reason
    assert isinstance(step(restart(), TWO, THREE, broken), Stop), "nor does another one begin"


def test_it_does_not_wait_for_ever() -> None:
    row = restart(ONE, TWO, THREE, current="w1", age=3600)
    stubborn = step(row, replace(ONE, is_leaving=True), TWO, THREE)
    assert isinstance(stubborn, Stop)
    assert "did not end" in stubborn.reason
    alone = step(row, TWO, THREE)
    assert isinstance(alone, Stop)
    assert "No successor" in alone.reason


def test_it_ends_when_all_run_the_present_options() -> None:
    assert step(restart(), *(worker(number, "new") for number in (4, 5, 6))) == Finish()
    changed_meanwhile = worker(4, "between")
    assert step(restart(), changed_meanwhile, worker(5, "new"), worker(6, "new")) == Order(changed_meanwhile)
    healing = worker(6, "between", state=WorkerState.BROKEN)
    assert step(restart(), worker(4, "new"), healing) == Finish(), "a broken one takes new options by itself"
