"""Who may come in, and what they see."""

import time

import msgspec
import pytest

from apps.streams.config_view import Caller, ConfigView
from headrace_wire.adapters import AdapterConfig, AdapterUse
from headrace_wire.api_key import ApiKeyScope, ApiKeyToken
from headrace_wire.cache_salt import cache_salt
from headrace_wire.errors import InvalidApiKeyError, ModelNotFoundError, PermissionDeniedError
from tests.support.snapshots import KEY_A, KEY_B, MODELS_KEY, REVOKED_KEY, TENANT_A, api_key, snapshot

VIEW = ConfigView(snapshot())


def test_a_good_key_names_its_tenant() -> None:
    assert VIEW.authenticate(KEY_A.reveal()).tenant.id == TENANT_A


@pytest.mark.parametrize(
    "presented",
    [
        None,
        "",
        "nonsense",
        "sk-hr-aaaaaaaaaaaa-" + "B" * 40,
        ApiKeyToken("zzzzzzzzzzzz", "Z" * 40).reveal(),
        ApiKeyToken(REVOKED_KEY.public_id, "Z" * 40).reveal(),
        KEY_A.reveal() + "x",
        "sk-hr-aaaaaaaaaaaa-" + "é" * 40,
    ],
)
def test_other_keys_are_refused_without_saying_why(presented: str | None) -> None:
    with pytest.raises(InvalidApiKeyError) as error:
        VIEW.authenticate(presented)
    assert "B" * 40 not in error.value.message
    assert "revoked" not in error.value.message


def test_whoever_holds_a_key_that_ended_is_told_why() -> None:
    with pytest.raises(InvalidApiKeyError, match="revoked"):
        VIEW.authenticate(REVOKED_KEY.reveal())
    config = snapshot()
    key = msgspec.structs.replace(api_key(KEY_A, TENANT_A), expires_at=time.time() - 1)
    with pytest.raises(InvalidApiKeyError, match="expired"):
        ConfigView(msgspec.structs.replace(config, api_keys=[key])).authenticate(KEY_A.reveal())
    asleep = [msgspec.structs.replace(tenant, active=False) for tenant in config.tenants]
    with pytest.raises(InvalidApiKeyError, match="not active"):
        ConfigView(msgspec.structs.replace(config, tenants=asleep)).authenticate(KEY_A.reveal())


def test_a_key_without_the_scope_is_denied() -> None:
    caller = VIEW.authenticate(MODELS_KEY.reveal())
    VIEW.require_scope(caller, ApiKeyScope.MODELS)
    with pytest.raises(PermissionDeniedError):
        VIEW.require_scope(caller, ApiKeyScope.INFERENCE)


def test_deployments_are_visible_to_whom_they_are_meant_for() -> None:
    a, b = VIEW.authenticate(KEY_A.reveal()), VIEW.authenticate(KEY_B.reveal())
    assert "only-b" not in {d.name for d in VIEW.deployments(a)}
    assert "only-b" in {d.name for d in VIEW.deployments(b)}
    with pytest.raises(ModelNotFoundError) as hidden:
        VIEW.deployment(a, "only-b")
    with pytest.raises(ModelNotFoundError) as unknown:
        VIEW.deployment(a, "nothing")
    assert hidden.value.message.replace("only-b", "") == unknown.value.message.replace("nothing", "")


def test_a_key_may_be_narrowed_to_deployments() -> None:
    narrow = msgspec.structs.replace(api_key(KEY_A, TENANT_A), deployment_ids=frozenset({"slow"}))
    view = ConfigView(msgspec.structs.replace(snapshot(), api_keys=[narrow]))
    caller = view.authenticate(KEY_A.reveal())
    assert [d.name for d in view.deployments(caller)] == ["slow"]
    with pytest.raises(ModelNotFoundError):
        view.deployment(caller, "sim")


def test_an_open_connection_loses_access_with_its_key_and_its_tenant() -> None:
    config = snapshot()
    by_key = VIEW.authenticate(KEY_A.reveal())
    by_ticket = Caller(by_key.tenant, user_id="u")
    assert VIEW.renewed(by_key).tenant.id == VIEW.renewed(by_ticket).tenant.id == TENANT_A
    revoked = ConfigView(msgspec.structs.replace(config, api_keys=[api_key(KEY_A, TENANT_A, revoked=True)]))
    gone = ConfigView(msgspec.structs.replace(config, api_keys=[]))
    asleep = [msgspec.structs.replace(tenant, active=False) for tenant in config.tenants]
    sleeping = ConfigView(msgspec.structs.replace(config, tenants=asleep))
    for view, caller in ((revoked, by_key), (gone, by_key), (sleeping, by_key), (sleeping, by_ticket)):
        with pytest.raises(InvalidApiKeyError):
            view.renewed(caller)


def test_an_adapter_is_there_for_its_tenant_alone() -> None:
    adapter = AdapterConfig(
        id="1" * 32, tenant_id=TENANT_A, deployment="sim", name="tides", place="acme/tides", revision="f" * 64
    )
    hidden = msgspec.structs.replace(adapter, id="2" * 32, deployment="only-b", name="ebb")
    view = ConfigView(msgspec.structs.replace(snapshot(), adapters=[adapter, hidden]))
    own, foreign = (view.authenticate(key.reveal()) for key in (KEY_A, KEY_B))
    found = view.deployment(own, "sim:tides")
    assert (found.name, found.public_name, found.adapter) == ("sim", "sim:tides", adapter.use)
    assert "sim:tides" in [d.public_name for d in view.deployments(own)]
    assert not any(d.adapter for d in view.deployments(foreign))
    told = []
    for caller, name in ((foreign, "sim:tides"), (own, "sim:other"), (own, "only-b:ebb"), (foreign, "only-b:ebb")):
        with pytest.raises(ModelNotFoundError) as error:
            view.deployment(caller, name)
        told.append(error.value.message.replace(name, "…"))
    assert len(set(told)) == 1, "nothing tells a foreign adapter from one that is not there"


def test_an_adapters_revision_parts_the_prefix_cache() -> None:
    uses = [AdapterUse(one, "tides", "acme/tides", revision * 64) for one in "12" for revision in "ab"]
    salts = {cache_salt(b"secret", tenant, use) for tenant in (TENANT_A, "b" * 32) for use in (None, *uses)}
    assert len(salts) == 10
