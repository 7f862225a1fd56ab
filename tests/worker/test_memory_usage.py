from pathlib import Path

import pytest

from headrace_worker.memory_usage import memory_usage


def control_group(folder: Path, *, limit: str, used: int, droppable: int = 0) -> Path:
    """As Linux shows one."""
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {droppable}\n")
    return folder


def test_the_fuller_one_of_machine_and_control_group_counts(tmp_path: Path) -> None:
    machine = memory_usage(tmp_path / "none")
    assert 0 < machine < 1
    assert memory_usage(control_group(tmp_path, limit="1000", used=999)) == pytest.approx(0.999, abs=0.0011)
    assert memory_usage(control_group(tmp_path, limit="1000", used=5)) == pytest.approx(machine, abs=0.1)


def test_files_that_can_be_dropped_and_no_limit_do_not_count(tmp_path: Path) -> None:
    machine = memory_usage(tmp_path / "none")
    dropped = control_group(tmp_path, limit="1000", used=1000, droppable=999)
    assert memory_usage(dropped) == pytest.approx(machine, abs=0.1)
    assert memory_usage(control_group(tmp_path, limit="max", used=10**15)) == pytest.approx(machine, abs=0.1)
