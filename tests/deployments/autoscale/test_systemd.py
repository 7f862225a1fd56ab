"""The systemd executor with a `systemctl` of the test's own on the path."""

import json
import sys
from pathlib import Path

import pytest

from apps.deployments.autoscale.executors.protocol import ExecutorError, Trouble, Victim
from apps.deployments.autoscale.executors.systemd import SystemdExecutor

# Units are lines of a JSON file; what the real program prints, in its words.
SYSTEMCTL = """#!{python}
import json, pathlib, sys, time
here = pathlib.Path({folder!r})
log = here / "log"
log.write_text(log.read_text() + json.dumps(sys.argv[1:]) + "\\n" if log.exists() else json.dumps(sys.argv[1:]) + "\\n")
units = json.loads((here / "units").read_text())
verb, *rest = sys.argv[1:]
names = [word for word in rest if not word.startswith("-")]
trouble = (here / "trouble").read_text() if (here / "trouble").exists() else ""
if trouble == "hang":
    time.sleep(60)
elif trouble:
    sys.exit(trouble)
if verb == "list-units":
    for name, (state, _) in units.items():
        print(name, "loaded", state, "running" if state == "active" else state, "Headrace worker")
    print("headrace-worker@x.service loaded active running not ours")
elif verb == "show":
    print("\\n\\n".join(str(units[name][1]) for name in names))
elif verb == "start":
    units.update({{name: ["activating", 1000 + len(units) + n] for n, name in enumerate(names)}})
elif verb == "stop":
    units.update({{name: ["deactivating", 0] for name in names}})
(here / "units").write_text(json.dumps(units))
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.units = {}
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)

    @property
    def units(self) -> dict[str, list[object]]:
        found: dict[str, list[object]] = json.loads((self.folder / "units").read_text())
        return found

    @units.setter
    def units(self, units: dict[str, list[object]]) -> None:
        (self.folder / "units").write_text(json.dumps(units))

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def trouble(self, words: str) -> None:
        (self.folder / "trouble").write_text(words)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Machine(tmp_path)


WORKERS = SystemdExecutor("headrace-worker")


def unit(number: int) -> str:
    return f"headrace-worker@{number}.service"


def test_instances_that_run_are_counted(machine: Machine) -> None:
    states = ["active", "activating", "failed", "inactive", "deactivating", "reloading"]
    machine.units = {unit(number): [state, number] for number, state in enumerate(states, 1)}
    assert WORKERS.current() == 3


def test_the_lowest_free_numbers_are_started(machine: Machine) -> None:
    machine.units = {unit(2): ["active", 20], unit(3): ["failed", 0]}
    WORKERS.scale_to(3, [])
    assert machine.asked[-1] == ["start", "--no-block", unit(1), unit(3)]
    asked = len(machine.asked)
    WORKERS.scale_to(3, [])
    assert [words[0] for words in machine.asked[asked:]] == ["list-units"], "an absolute number"


def test_victims_are_stopped_then_the_highest_numbers(machine: Machine) -> None:
    machine.units = {unit(number): ["active", number * 10] for number in (1, 2, 3, 11)}
    WORKERS.scale_to(2, [Victim("w", "here", 20)])
    assert machine.asked[-1] == ["stop", "--no-block", unit(2), unit(11)]
    assert WORKERS.current() == 2


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        ("Failed to start headrace-worker@1.service: Interactive authentication required.", Trouble.FORBIDDEN),
        ("Failed to start headrace-worker@1.service: Unit headrace-worker@.service not found.", Trouble.NOT_FOUND),
        ("System has not been booted with systemd as init system.", Trouble.REFUSED),
    ],
)
def test_a_refusal_is_told_in_its_own_words(machine: Machine, said: str, trouble: Trouble) -> None:
    machine.trouble(said)
    with pytest.raises(ExecutorError, match=r"systemctl list-units: ") as caught:
        WORKERS.scale_to(1, [])
    assert said in str(caught.value)
    assert caught.value.trouble is trouble


def test_silence_and_absence_are_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.trouble("hang")
    with pytest.raises(ExecutorError, match="did not answer within") as caught:
        SystemdExecutor("headrace-worker", seconds=0.5).current()
    assert caught.value.trouble is Trouble.TIMEOUT
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ExecutorError, match="no systemctl"):
        WORKERS.current()
