"""Places that one tenant, and one user, may take at a gateway."""

import pytest

from apps.streams.config_view import Caller
from apps.streams.connections import ConnectionLimit
from headrace_wire.errors import RateLimitError
from headrace_wire.snapshot import ApiKeyConfig, TenantConfig
from tests.support.snapshots import KEY_A, TENANT_A, TENANT_B, api_key

KEY: ApiKeyConfig = api_key(KEY_A, TENANT_A)
SMALL = TenantConfig(id=TENANT_A, slug="a", max_connections=3)
OTHER = TenantConfig(id=TENANT_B, slug="b", max_connections=3)


def test_a_tenant_has_its_limit_and_others_have_theirs() -> None:
    limit = ConnectionLimit()
    caller = Caller(SMALL, api_key=KEY)
    for _ in range(3):
        limit.enter(caller)
    with pytest.raises(RateLimitError) as error, limit.held(caller):
        pass
    assert error.value.retry_after_seconds
    with limit.held(Caller(OTHER, user_id="u")):
        pass
    limit.leave(caller)
    with limit.held(caller), pytest.raises(RateLimitError):
        limit.enter(caller)
    limit.enter(caller)


def test_a_user_has_a_smaller_one() -> None:
    limit = ConnectionLimit(per_user=2)
    one, other = (Caller(SMALL, user_id=name) for name in ("one", "other"))
    limit.enter(one)
    limit.enter(one)
    with pytest.raises(RateLimitError, match="user"):
        limit.enter(one)
    limit.enter(other)  # what was refused took nothing of its tenant's
    with pytest.raises(RateLimitError, match="tenant"):
        limit.enter(other)


def test_nothing_is_kept_of_who_has_left() -> None:
    limit = ConnectionLimit()
    with limit.held(Caller(SMALL, user_id="one")), limit.held(Caller(OTHER, api_key=KEY)):
        pass
    assert not limit._open
