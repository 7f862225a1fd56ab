"""The configuration snapshot as the gateway uses it: look-ups instead of lists, always the newest version seen."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.adapters import SEPARATOR, AdapterConfig
from headrace_wire.api_key import ApiKeyScope, ApiKeyToken
from headrace_wire.errors import InvalidApiKeyError, ModelNotFoundError, PermissionDeniedError
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import GuardAttachment
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.snapshot import ApiKeyConfig, ConfigSnapshot, DeploymentConfig, TenantConfig, decode_snapshot

log = structlog.get_logger(__name__)

REREAD_SECONDS = 1.0
"""How old a configuration may be: the re-read that makes good a lost notice."""


class Caller:
    """Who asks: the tenant, and what the key or the chat's ticket allows. Never built from a caller's own fields."""

    __slots__ = ("api_key", "tenant", "user_id")

    def __init__(
        self, tenant: TenantConfig, *, api_key: ApiKeyConfig | None = None, user_id: str | None = None
    ) -> None:
        self.tenant = tenant
        self.api_key = api_key
        self.user_id = user_id


class ConfigView:
    """One version of the configuration, indexed."""

    def __init__(self, snapshot: ConfigSnapshot) -> None:
        self.version = snapshot.version
        self.tenants = {tenant.id: tenant for tenant in snapshot.tenants}
        self._keys = {key.public_id: key for key in snapshot.api_keys}
        self.quotas = snapshot.quotas
        self._guardrails = snapshot.guardrails
        self._prompt_caches: dict[tuple[str, str], list[PromptCacheConfig]] = {}
        for cache in snapshot.prompt_caches:
            self._prompt_caches.setdefault((cache.tenant_id, cache.deployment), []).append(cache)
        self._response_caches = {(c.tenant_id, c.deployment_id): c for c in snapshot.response_caches}
        self._deployments = {d.name: d for d in snapshot.deployments if d.active}
        self.with_breaker = [d for d in self._deployments.values() if d.breaker is not None]
        """Active deployments whose circuit breaker is switched on."""
        self._adapted = self._with_adapters(snapshot.adapters)

    def authenticate(self, presented: str | None) -> Caller:
        """Return the caller whose key was presented.

        Raises:
            InvalidApiKeyError: no key, or one that is malformed, unknown, expired, revoked, or of an inactive tenant.
        """
        token = ApiKeyToken.parse(presented) if presented else None
        key = self._keys.get(token.public_id) if token else None
        if token is None or key is None or not token.matches(key.secret_sha256):
            raise InvalidApiKeyError(
                "Incorrect API key provided. Keys look like sk-hr-… and are made in the admin."
                if presented
                else "You didn't provide an API key. Send it as `Authorization: Bearer sk-hr-…`."
            )
        return self._admitted(key)

    def bearer_of(self, public_id: str) -> Caller:
        """Return the caller of a key in whose name we signed something.

        Raises:
            InvalidApiKeyError: the key is gone, has expired or was revoked, or its tenant is not active.
        """
        key = self._keys.get(public_id)
        if key is None:
            raise InvalidApiKeyError("The API key that asked for this access is gone.")
        return self._admitted(key)

    def renewed(self, caller: Caller) -> Caller:
        """Return the caller as this configuration knows it: a connection that stays open outlives keys and tenants.

        Raises:
            InvalidApiKeyError: the key was revoked or has expired, or the tenant is not active any more.
        """
        if caller.api_key is not None:
            key = self._keys.get(caller.api_key.public_id)
            if key is not None:
                return self._admitted(key)
        else:
            tenant = self.tenants.get(caller.tenant.id)
            if tenant is not None and tenant.active:
                return Caller(tenant, user_id=caller.user_id)
        raise InvalidApiKeyError("This connection's access has ended; sign in or connect with a valid key again.")

    def _admitted(self, key: ApiKeyConfig) -> Caller:
        """Let in whoever holds the whole key; he may be told why it does not work any more."""
        tenant = self.tenants.get(key.tenant_id)
        if key.revoked:
            problem = "This API key was revoked."
        elif key.expires_at is not None and key.expires_at <= time.time():
            problem = "This API key has expired."
        elif tenant is None or not tenant.active:
            problem = "The tenant of this API key is not active."
        else:
            return Caller(tenant, api_key=key, user_id=key.user_id)
        log.info("key_refused", public_id=key.public_id, problem=problem)
        raise InvalidApiKeyError(f"{problem} An administrator can make a new one or activate the tenant.")

    @staticmethod
    def require_scope(caller: Caller, scope: ApiKeyScope) -> None:
        """Check that a key may do this; a chat ticket may do what the chat does.

        Raises:
            PermissionDeniedError: the key lacks the scope.
        """
        if caller.api_key is not None and scope.value not in caller.api_key.scopes:
            raise PermissionDeniedError(f"This API key lacks the scope `{scope.value}`.")

    def guardrails(self, caller: Caller, deployment: DeploymentConfig) -> list[GuardAttachment]:
        """Return the guardrail policies that judge what the caller asks of the deployment, each once."""
        key_id = caller.api_key.id if caller.api_key is not None else None
        found = {
            attachment.digest: attachment
            for attachment in self._guardrails
            if attachment.tenant_id in (None, caller.tenant.id)
            and attachment.deployment_id in (None, deployment.id)
            and attachment.api_key_id in (None, key_id)
        }
        return [found[digest] for digest in sorted(found)]

    def prompt_caches(self, caller: Caller, deployment: DeploymentConfig) -> list[PromptCacheConfig]:
        """Return the prompt caches of the caller's tenant for the deployment."""
        return self._prompt_caches.get((caller.tenant.id, deployment.name), [])

    @property
    def compares_questions(self) -> bool:
        """Whether a policy has questions compared with others."""
        return any(terms.semantic and terms.enabled for terms in self._response_caches.values())

    def response_cache(self, caller: Caller, deployment: DeploymentConfig) -> ResponseCacheTerms | None:
        """Return the policy for what the caller asks of the deployment; None where nothing is kept."""
        if not self._response_caches:
            return None
        own = self._response_caches.get((caller.tenant.id, deployment.id))
        found = own or self._response_caches.get((caller.tenant.id, None))
        return found if found is not None and found.enabled else None

    def deployments(self, caller: Caller) -> list[DeploymentConfig]:
        """Return the deployments that the caller may use, by name; after each, with the adapters of its tenant."""
        own = self._adapted.get(caller.tenant.id, {})
        found = (d for d in (*self._deployments.values(), *own.values()) if _may_use(caller, d))
        return sorted(found, key=lambda d: d.public_name)

    def deployment(self, caller: Caller, name: str) -> DeploymentConfig:
        """Return the deployment called `name`, or `<deployment>:<adapter>` with an adapter of the caller's tenant.

        Raises:
            ModelNotFoundError: there is none, or the caller may not see it; the two read the same.
        """
        found = self._deployments.get(name) or self._adapted.get(caller.tenant.id, {}).get(name)
        if found is None or not _may_use(caller, found):
            raise ModelNotFoundError(
                f"The model `{name}` does not exist or you do not have access to it.", param="model"
            )
        return found

    def fallback_of(self, caller: Caller, deployment: DeploymentConfig) -> DeploymentConfig | None:
        """Return the deployment that may stand in for another one; None where there is none that the caller may use.

        Who asked for an adapter gets the fallback's adapter of the same name: other weights are no answer.
        """
        if deployment.fallback is None:
            return None
        adapter = deployment.adapter
        name = deployment.fallback if adapter is None else f"{deployment.fallback}{SEPARATOR}{adapter.name}"
        try:
            return self.deployment(caller, name)
        except ModelNotFoundError:
            return None

    def served_by(self, name: str, otherwise: DeploymentConfig) -> DeploymentConfig:
        """Return the deployment of a stream that the caller has already, where it is still active."""
        return self._deployments.get(name, otherwise)

    def _with_adapters(self, adapters: Sequence[AdapterConfig]) -> dict[str, dict[str, DeploymentConfig]]:
        """Return, by tenant and public name, the deployments as their adapters make them.

        What is typed is not computed ahead for them: drafts are prefilled with the model as it is.
        """
        found: dict[str, dict[str, DeploymentConfig]] = {}
        for adapter in adapters:
            base = self._deployments.get(adapter.deployment)
            if base is not None:
                adapted = msgspec.structs.replace(base, adapter=adapter.use, prefills_drafts=False)
                found.setdefault(adapter.tenant_id, {})[adapted.public_name] = adapted
        return found


def _may_use(caller: Caller, deployment: DeploymentConfig) -> bool:
    if deployment.visible_tenant_ids is not None and caller.tenant.id not in deployment.visible_tenant_ids:
        return False
    key = caller.api_key
    return key is None or key.deployment_ids is None or deployment.id in key.deployment_ids


class ConfigReader:
    """Keeps `view` at the newest snapshot: told by pub/sub, made sure of every second, kept while Redis is away."""

    def __init__(self, redis: "Redis", on_change: Callable[[ConfigView], None] | None = None) -> None:
        self._redis = redis
        self._on_change = on_change
        self._unreadable = b""
        self.view = ConfigView(ConfigSnapshot(version=0))

    async def refresh(self) -> None:
        """Read the snapshot if its version is newer; one of another release that cannot be read changes nothing.

        Raises:
            redis.exceptions.RedisError: the view stays as it was.
        """
        stored: Reply = await self._redis.hget(redis_keys.snapshot_key(), "version")
        if stored is None or int(stored) <= self.view.version:
            return
        data: Reply = await self._redis.hget(redis_keys.snapshot_key(), "data")
        if data is None:
            return
        try:
            snapshot = decode_snapshot(data)
        except msgspec.DecodeError as error:
            if stored != self._unreadable:  # said once of each version
                self._unreadable = stored
                log.exception("config_unreadable", version=int(stored), kept=self.view.version, error=str(error))
            return
        self.view = ConfigView(snapshot)
        log.info("config_read", version=self.view.version)
        if self._on_change is not None:
            self._on_change(self.view)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        while True:
            try:
                await self._follow()
            except RedisError as error:
                log.warning("config_unreachable", error=str(error), version=self.view.version)
                await asyncio.sleep(REREAD_SECONDS)

    async def _follow(self) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(redis_keys.snapshot_channel())
            while True:
                await self.refresh()
                await channel.get_message(ignore_subscribe_messages=True, timeout=REREAD_SECONDS)
