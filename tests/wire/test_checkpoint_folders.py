"""The folders of KV checkpoints."""

from pathlib import Path

import pytest

from headrace_wire.checkpoint_folders import (
    discard_stream,
    discard_tenant,
    make_folder,
    new_file_names,
    stream_folder,
    stream_folders,
    tenant_ids,
)


def saved(root: Path, tenant_id: str, stream_id: str, size: int = 10) -> Path:
    folder = stream_folder(root, tenant_id, stream_id)
    make_folder(folder)
    name, _ = new_file_names()
    (folder / name).write_bytes(bytes(size))
    return folder


def test_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "root", "tenant", "stream")
    for path in (folder, folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../other", "a b", "-a", "a\x00", "a" * 100, "ä"])
def test_what_is_not_an_id_is_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        stream_folder(tmp_path, name, "stream")
    with pytest.raises(ValueError, match="not an id"):
        stream_folder(tmp_path, "tenant", name)
    assert discard_stream(tmp_path, "tenant", name) == 0


def test_streams_and_tenants_are_listed_and_discarded(tmp_path: Path) -> None:
    saved(tmp_path, "a", "one", 10)
    saved(tmp_path, "a", "two", 20)
    saved(tmp_path, "b", "three", 30)
    (tmp_path / "a file").write_text("of somebody else")
    assert sorted(tenant_ids(tmp_path)) == ["a", "b"]
    assert {(folder.stream_id, folder.bytes) for folder in stream_folders(tmp_path, "a")} == {("one", 10), ("two", 20)}
    assert discard_stream(tmp_path, "a", "one") == 10
    assert discard_stream(tmp_path, "a", "one") == 0
    assert [folder.stream_id for folder in stream_folders(tmp_path, "a")] == ["two"]
    discard_tenant(tmp_path, "a")
    assert tenant_ids(tmp_path) == ["b"]
    assert (tmp_path / "a file").exists()


def test_an_empty_tenant_goes(tmp_path: Path) -> None:
    saved(tmp_path, "a", "one")
    discard_stream(tmp_path, "a", "one")
    assert tenant_ids(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_has_nothing(tmp_path: Path) -> None:
    assert tenant_ids(tmp_path / "none") == []
    assert stream_folders(tmp_path / "none", "a") == []
