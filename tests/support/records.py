"""Fixtures for tests of the Django side: an empty Redis behind the settings, tenants, people, keys, deployments."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings
from redis import Redis

from apps.accounts.models import ApiKey, User
from apps.accounts.services import api_key_create, user_create
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership, Tenant
from apps.tenants.services import membership_create, tenant_create
from headrace_wire.api_key import ApiKeyToken
from tests.support.processes import PATIENCE_SECONDS

PASSWORD = "a long enough password"


@pytest.fixture
def live_redis(redis_url: str, settings: Settings) -> Iterator[Redis]:
    """The test process's Redis, empty, and the one that the Django side uses."""
    settings.REDIS_URL = redis_url
    client = Redis.from_url(redis_url, socket_timeout=PATIENCE_SECONDS)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def tenant(db: None) -> Tenant:
    return tenant_create(tenant=Tenant(slug="acme", name="Acme"))


@pytest.fixture
def other_tenant(db: None) -> Tenant:
    return tenant_create(tenant=Tenant(slug="globex", name="Globex"))


@pytest.fixture
def user(db: None) -> User:
    person = User(email="ann@example.com", full_name="Ann Example")
    person.set_password(PASSWORD)
    return user_create(user=person)


@pytest.fixture
def membership(tenant: Tenant, user: User) -> Membership:
    return membership_create(tenant=tenant, user=user, role=MemberRole.OWNER)


@pytest.fixture
def deployment(db: None) -> ModelDeployment:
    return deployment_create(deployment=ModelDeployment(name="tiny", model="models/tiny"))


@pytest.fixture
def issued(tenant: Tenant) -> tuple[ApiKey, ApiKeyToken]:
    """A key of `tenant` and its token."""
    return api_key_create(api_key=ApiKey(tenant=tenant, name="service"))
