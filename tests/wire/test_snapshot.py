import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.snapshot import ApiKeyConfig, ConfigSnapshot, DeploymentConfig, decode_snapshot, encode_snapshot

IDS = st.none() | st.frozensets(st.text("0123456789abcdef", min_size=32, max_size=32), max_size=4)


def config(allowed: frozenset[str] | None, secret: bytes) -> ConfigSnapshot:
    return ConfigSnapshot(
        version=7,
        api_keys=[ApiKeyConfig(id="k", public_id="p", secret_sha256=secret, tenant_id="t", deployment_ids=allowed)],
        deployments=[DeploymentConfig(id="d", name="n", model="m", visible_tenant_ids=allowed)],
    )


@given(allowed=IDS, secret=st.binary(max_size=32))
def test_comes_back_as_it_was(allowed: frozenset[str] | None, secret: bytes) -> None:
    """Above all: "everybody" (None) and "nobody" (empty) stay two things."""
    assert decode_snapshot(encode_snapshot(config(allowed, secret))) == config(allowed, secret)


@given(ids=st.lists(st.text("0123456789abcdef", min_size=32, max_size=32), unique=True, max_size=6), data=st.data())
def test_equal_snapshots_have_equal_bytes(ids: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(ids))
    assert encode_snapshot(config(frozenset(ids), b"")) == encode_snapshot(config(frozenset(shuffled), b""))


def test_fields_of_a_newer_version_are_ignored_and_missing_ones_have_defaults() -> None:
    newer = {"version": 9, "deployments": [{"id": "d", "name": "n", "model": "m", "novel": 1}], "novel": []}
    assert decode_snapshot(msgspec.msgpack.encode(newer)) == ConfigSnapshot(
        version=9, deployments=[DeploymentConfig(id="d", name="n", model="m")]
    )


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"version": "x"})])
def test_broken_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_snapshot(data)
