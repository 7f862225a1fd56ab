"""The checkpoint directory: what comes back is what was written, or nothing does."""

import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_wire.checkpoint_folders import discard_stream, stream_folder, stream_folders
from headrace_worker.engine_core.checkpoints.store import (
    LOOK_SECONDS,
    CheckpointStore,
    Found,
    Refusal,
    RefusedError,
    StreamKey,
)

KEY = StreamKey("tenant", "stream")
LAYERS = 3
LAYER_BYTES = 40
BLOCK_BYTES = LAYERS * LAYER_BYTES


def content(block: int) -> list[memoryview]:
    generator = random.Random(block)
    return [memoryview(generator.randbytes(LAYER_BYTES)) for _ in range(LAYERS)]


def hashes(count: int, *, salt: str = "") -> list[bytes]:
    return [f"{salt}{block}".encode().ljust(32, b".") for block in range(count)]


def store(root: Path, *, fingerprint: str = "model", limit: int = 1 << 20) -> CheckpointStore:
    return CheckpointStore(root, fingerprint=fingerprint, bytes_per_tenant=limit)


def save(into: CheckpointStore, first: int, end: int, *, key: StreamKey = KEY, salt: str = "") -> int:
    return into.save(
        key,
        first=first,
        hashes=hashes(end, salt=salt)[first:],
        block_bytes=BLOCK_BYTES,
        blocks=map(content, range(first, end)),
    )


def load(source: CheckpointStore, found: Found, start: int) -> list[bytes]:
    """Return the blocks from `start` on."""
    pieces = found.pieces(start)
    end = start + sum(piece.count for piece in pieces)
    memory = [[memoryview(bytearray(LAYER_BYTES)) for _ in range(LAYERS)] for _ in range(start, end)]
    source.load(hashes(end)[start:], pieces, memory)
    return [b"".join(views) for views in memory]


def expected(start: int, end: int) -> list[bytes]:
    return [b"".join(content(block)) for block in range(start, end)]


def only_file(root: Path) -> Path:
    (path,) = stream_folder(root, KEY.tenant_id, KEY.stream_id).iterdir()
    return path


# ---- saved and found


def test_segments_are_found_as_one(tmp_path: Path) -> None:
    here = store(tmp_path)
    assert save(here, 0, 5) + save(here, 5, 9) == sum(folder.bytes for folder in stream_folders(tmp_path, "tenant"))
    found = store(tmp_path).find(KEY, hashes(20))
    assert (found.complete_until, found.refusals) == (9, ())
    for start in range(9):
        assert load(here, found, start) == expected(start, 9)
    assert found.pieces(9) == []


def test_only_what_was_the_same_is_found(tmp_path: Path) -> None:
    """Up to the first hash that differs; and no further than the request goes."""
    here = store(tmp_path)
    save(here, 0, 8)
    mixed = hashes(5) + hashes(10, salt="other")[5:]
    assert here.find(KEY, mixed).complete_until == 5
    assert here.find(KEY, hashes(3)).complete_until == 3
    assert load(here, here.find(KEY, hashes(3)), 1) == expected(1, 3)
    assert here.find(KEY, []) == here.find(StreamKey("tenant", "unknown"), hashes(8)) == Found(())


def test_overlapping_writers_do_no_harm(tmp_path: Path) -> None:
    """A worker that was thought dead writes on: blocks come from whichever file goes furthest."""
    here = store(tmp_path)
    for first, end in [(0, 4), (2, 6), (4, 5), (5, 9), (0, 2)]:
        save(here, first, end)
    found = here.find(KEY, hashes(20))
    assert found.complete_until == 9
    assert load(here, found, 0) == expected(0, 9)


def test_a_gap_ends_it(tmp_path: Path) -> None:
    here = store(tmp_path)
    save(here, 0, 3)
    save(here, 4, 6)
    found = here.find(KEY, hashes(10))
    assert found.complete_until == 3
    assert load(here, found, 4) == expected(4, 6)


# ---- refused


def test_another_model_and_another_salt(tmp_path: Path) -> None:
    save(store(tmp_path), 0, 3)
    assert store(tmp_path, fingerprint="other").find(KEY, hashes(3)) == Found((), (Refusal.FINGERPRINT,))
    assert store(tmp_path).find(KEY, hashes(3, salt="other")) == Found((), (Refusal.HASHES,))
    assert store(tmp_path).find(KEY, hashes(3)).complete_until == 3, "it stays for those that it is for"


def damaged(root: Path, position: int, flip: int, cut: int | None) -> None:
    path = only_file(root)
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] ^= flip
    path.write_bytes(raw if cut is None else raw[: cut % len(raw)])


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255), st.none() | st.integers(0, 10_000))
def test_no_damage_is_taken_for_blocks(position: int, flip: int, cut: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        here = store(root)
        save(here, 0, 6)
        damaged(root, position, flip, cut)
        found = here.find(KEY, hashes(6))
        if found.segments:
            with pytest.raises(RefusedError) as refusal:
                load(here, found, 0)
            assert refusal.value.reason is Refusal.CORRUPT
        else:
            assert found.refusals == (Refusal.CORRUPT,)
        assert here.find(KEY, hashes(6)) == Found(), "the file was deleted"


def test_a_file_that_was_exchanged_after_it_was_found(tmp_path: Path) -> None:
    here = store(tmp_path)
    save(here, 0, 3)
    found = here.find(KEY, hashes(3))
    mine = only_file(tmp_path)
    save(here, 0, 3, salt="other")
    (other,) = {path for path in mine.parent.iterdir() if path != mine}
    other.rename(mine)
    with pytest.raises(RefusedError) as refusal:
        load(here, found, 0)
    assert refusal.value.reason is Refusal.HASHES


def test_files_that_are_gone(tmp_path: Path) -> None:
    here = store(tmp_path)
    save(here, 0, 3)
    found = here.find(KEY, hashes(3))
    discard_stream(tmp_path, KEY.tenant_id, KEY.stream_id)
    with pytest.raises(RefusedError) as refusal:
        load(here, found, 0)
    assert refusal.value.reason is Refusal.UNREADABLE
    with pytest.raises(RefusedError) as refusal:
        save(here, 3, 6)
    assert refusal.value.reason is Refusal.INCOMPLETE
    assert not stream_folder(tmp_path, KEY.tenant_id, KEY.stream_id).exists()
    save(here, 0, 6)
    assert here.find(KEY, hashes(6)).complete_until == 6


def test_a_stream_that_ended_while_it_was_written(tmp_path: Path) -> None:
    here = store(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        here.save(KEY, first=0, hashes=hashes(1), block_bytes=BLOCK_BYTES, blocks=[content(0)], is_wanted=lambda: False)
    assert refusal.value.reason is Refusal.LATE
    assert not stream_folder(tmp_path, KEY.tenant_id, KEY.stream_id).exists()


def test_a_stream_that_was_discarded_while_it_was_written(tmp_path: Path) -> None:
    def discard() -> bool:
        discard_stream(tmp_path, KEY.tenant_id, KEY.stream_id)
        return True

    here = store(tmp_path)
    with pytest.raises(RefusedError) as refusal:
        here.save(KEY, first=0, hashes=hashes(1), block_bytes=BLOCK_BYTES, blocks=[content(0)], is_wanted=discard)
    assert refusal.value.reason is Refusal.INCOMPLETE
    assert not stream_folder(tmp_path, KEY.tenant_id, KEY.stream_id).exists()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "tenant").write_text("in the way")
    with pytest.raises(RefusedError) as refusal:
        save(store(tmp_path), 0, 1)
    assert refusal.value.reason is Refusal.UNREADABLE
    assert store(tmp_path).find(KEY, hashes(1)) == Found((), (Refusal.UNREADABLE,))
    assert store(tmp_path).find(StreamKey("../tenant", "stream"), hashes(1)) == Found((), (Refusal.UNREADABLE,))


# ---- the tenant's limit


def streams(root: Path, tenant_id: str = "tenant") -> set[str]:
    return {folder.stream_id for folder in stream_folders(root, tenant_id)}


def aged(root: Path, stream_id: str, seconds: float) -> None:
    os.utime(stream_folder(root, "tenant", stream_id), (seconds, seconds))


def test_the_checkpoint_used_longest_ago_makes_room(tmp_path: Path) -> None:
    size = save(store(tmp_path), 0, 10, key=StreamKey("other", "a"))
    here = store(tmp_path, limit=int(size * 3.5))
    for age, stream_id in enumerate("abc"):
        save(here, 0, 10, key=StreamKey("tenant", stream_id))
        aged(tmp_path, stream_id, 1000 + age)
    load(here, here.find(StreamKey("tenant", "a"), hashes(10)), 0)
    save(here, 0, 10, key=StreamKey("tenant", "d"))
    assert streams(tmp_path) == {"a", "c", "d"}, "`a` was loaded a moment ago"
    assert streams(tmp_path, "other") == {"a"}, "another tenant's is not theirs to remove"


def test_a_stream_does_not_make_room_for_itself(tmp_path: Path) -> None:
    size = save(store(tmp_path), 0, 10)
    here = store(tmp_path, limit=int(size * 1.5))
    with pytest.raises(RefusedError) as refusal:
        save(here, 10, 20)
    assert refusal.value.reason is Refusal.LIMIT
    assert here.find(KEY, hashes(20)).complete_until == 10


def test_others_write_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process counts its own files at once, and those of others after a while."""
    size = save(store(tmp_path), 0, 10, key=StreamKey("tenant", "old"))
    aged(tmp_path, "old", 1000)
    here, there = store(tmp_path, limit=int(size * 3.5)), store(tmp_path)
    save(here, 0, 10, key=StreamKey("tenant", "mine"))
    save(there, 0, 10, key=StreamKey("tenant", "theirs"))
    save(here, 0, 10, key=StreamKey("tenant", "mine-2"))
    assert streams(tmp_path) == {"old", "mine", "theirs", "mine-2"}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LOOK_SECONDS + 1)
    save(here, 0, 1, key=StreamKey("tenant", "mine-3"))
    assert streams(tmp_path) == {"mine", "theirs", "mine-2", "mine-3"}


def test_what_a_killed_writer_left_counts_and_goes(tmp_path: Path) -> None:
    size = save(store(tmp_path), 0, 10, key=StreamKey("tenant", "dead"))
    folder = stream_folder(tmp_path, "tenant", "dead")
    (folder / ".writing-0.kv").write_bytes(bytes(size))
    aged(tmp_path, "dead", 1000)
    here = store(tmp_path, limit=size * 2)
    assert here.find(StreamKey("tenant", "dead"), hashes(10)).complete_until == 10
    save(here, 0, 10)
    assert streams(tmp_path) == {"stream"}


# ---- several at once


def test_readers_beside_writers_and_cleaners(tmp_path: Path) -> None:
    """Four workers on the same streams, in a directory that is too small: whatever is read is right."""
    size = save(store(tmp_path), 0, 10)
    keys = [StreamKey("tenant", f"stream-{number}") for number in range(4)]
    begin = threading.Barrier(4)
    refused: set[Refusal] = set()

    def work(seed: int) -> int:
        generator, here, read = random.Random(seed), store(tmp_path, limit=size * 2), 0
        begin.wait()
        for _ in range(60):
            key, end = generator.choice(keys), generator.randrange(2, 11)
            try:
                save(here, generator.choice([0, 0, end - 1]), end, key=key)
                if generator.random() < 0.2:
                    discard_stream(tmp_path, key.tenant_id, key.stream_id)
                found = here.find(key, hashes(10))
                assert Refusal.CORRUPT not in found.refusals
                blocks = load(here, found, 0)
            except RefusedError as refusal:
                refused.add(refusal.reason)
                continue
            assert blocks == expected(0, len(blocks))
            read += len(blocks)
        return read

    with ThreadPoolExecutor(4) as workers:
        counts: Sequence[int] = list(workers.map(work, range(4)))
    assert all(counts)
    assert refused <= {Refusal.INCOMPLETE, Refusal.UNREADABLE, Refusal.LIMIT}
    for key in keys:
        discard_stream(tmp_path, key.tenant_id, key.stream_id)
    assert streams(tmp_path) <= {"stream"}
