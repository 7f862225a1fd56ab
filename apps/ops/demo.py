"""Demo data of the embedded default: a tenant, an admin, a user, a key and a deployment.

What is made up here (passwords, the key) is kept in a file of the state folder, readable by its owner alone, so that a
second run gives the same; the database holds only digests of it.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from django.db import transaction

from apps.accounts.enums import ApiKeyScope
from apps.accounts.models import ApiKey, User
from apps.accounts.selectors import user_get
from apps.accounts.services import api_key_create, user_create, user_update
from apps.deployments.enums import EngineKind
from apps.deployments.models import ModelDeployment
from apps.deployments.selectors import deployment_get
from apps.deployments.services import deployment_create, deployment_update
from apps.guardrails.enums import Action, PersonalDataKind, RuleKind
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership, Tenant
from apps.tenants.selectors import tenant_get
from apps.tenants.services import membership_create, tenant_create
from headrace_wire.api_key import ApiKeyToken

TENANT_SLUG = "demo"


def _password() -> str:
    return secrets.token_urlsafe(12)


@dataclass(frozen=True, slots=True)
class DemoUser:
    """Somebody who can sign in."""

    email: str
    password: str = field(repr=False, default_factory=_password)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """What a person needs to use the demo; the form of the file and of `seed_demo --json`."""

    admin: DemoUser
    user: DemoUser
    api_key: str = field(repr=False)
    model: str

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Returns what an earlier run kept, or None where there is nothing usable."""
        try:
            kept = json.loads(path.read_text("utf-8"))
            return cls(
                admin=DemoUser(**kept["admin"]),
                user=DemoUser(**kept["user"]),
                api_key=kept["api_key"],
                model=kept["model"],
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Keeps it, at once or not at all, for the owner's eyes only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:  # noqa: PTH123
            json.dump(self.to_builtins(), opened, indent=2)
        draft.chmod(0o600)
        draft.replace(path)

    def to_builtins(self) -> dict[str, Any]:
        """Returns plain types for JSON."""
        return asdict(self)


@transaction.atomic
def demo_seed(*, state: DemoState | None, deployment: ModelDeployment) -> DemoState:
    """Makes what is missing and mends what differs from `state`; returns the state that holds now.

    `deployment` is unsaved and says what should be served; one of its name takes over its model and engine.
    """
    admin = state.admin if state else DemoUser("admin@headrace.localhost")
    user = state.user if state else DemoUser("user@headrace.localhost")
    tenant = tenant_get(slug=TENANT_SLUG)
    if tenant is None:
        tenant = tenant_create(tenant=Tenant(slug=TENANT_SLUG, name="Demo"))
        _example_policy_make(tenant)
    _user_ensure(admin, full_name="Demo Admin", is_superuser=True, tenant=tenant, role=MemberRole.OWNER)
    _user_ensure(user, full_name="Demo User", is_superuser=False, tenant=tenant, role=MemberRole.MEMBER)
    _deployment_ensure(deployment)
    api_key = _api_key_ensure(state.api_key if state else "", tenant=tenant)
    return DemoState(admin=admin, user=user, api_key=api_key, model=deployment.name)


def _example_policy_make(tenant: Tenant) -> None:
    """Makes a guardrail to look at. It is a draft: it does nothing until somebody says so."""
    rule = GuardrailRule(
        kind=RuleKind.PERSONAL_DATA,
        name="Card numbers",
        personal_data={PersonalDataKind.CREDIT_CARD: Action.MASK, PersonalDataKind.IBAN_CODE: Action.MASK},
    )
    policy_save(policy=GuardrailPolicy(tenant=tenant, name="Example: no card numbers"), rules=[rule])


def _user_ensure(wanted: DemoUser, *, full_name: str, is_superuser: bool, tenant: Tenant, role: MemberRole) -> None:
    user = user_get(email=wanted.email)
    if user is None:
        user = User(email=wanted.email, full_name=full_name, is_staff=is_superuser, is_superuser=is_superuser)
        user.set_password(wanted.password)
        user_create(user=user)
    elif not user.check_password(wanted.password):
        user.set_password(wanted.password)
        user_update(user=user)
    if not Membership.objects.for_tenant(tenant).filter(user=user).exists():
        membership_create(tenant=tenant, user=user, role=role)


def _deployment_ensure(wanted: ModelDeployment) -> None:
    found = deployment_get(name=wanted.name)
    if found is None:
        deployment_create(deployment=wanted)
        return
    if (found.model, found.engine) != (wanted.model, wanted.engine):
        if found.engine != wanted.engine:
            found.engine_args = {}
        found.model, found.engine = wanted.model, wanted.engine
        deployment_update(deployment=found)


def _api_key_ensure(kept: str, *, tenant: Tenant) -> str:
    token = ApiKeyToken.parse(kept)
    if token is not None:
        keys = ApiKey.objects.for_tenant(tenant).filter(public_id=token.public_id, revoked_at__isnull=True)
        if any(token.matches(bytes(key.secret_sha256)) for key in keys):
            return kept
    _key, made = api_key_create(api_key=ApiKey(tenant=tenant, name="Demo key", scopes=list(ApiKeyScope.values)))
    return made.reveal()


def demo_deployment(*, name: str, model: str, engine: EngineKind) -> ModelDeployment:
    """Returns the unsaved deployment of the demo: modest sizes for a laptop."""
    return ModelDeployment(name=name, model=model, engine=engine, max_num_seqs=16)
