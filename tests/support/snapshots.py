"""A configuration snapshot for tests that need no database: two tenants, a key each, a simulated deployment."""

from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.functions import Functions
from headrace_wire.snapshot import (
    ApiKeyConfig,
    ConfigSnapshot,
    DeploymentConfig,
    EngineKind,
    TenantConfig,
    encode_snapshot,
)

TENANT_A = "a" * 32
TENANT_B = "b" * 32
KEY_A = ApiKeyToken("aaaaaaaaaaaa", "A" * 40)
KEY_B = ApiKeyToken("bbbbbbbbbbbb", "B" * 40)
REVOKED_KEY = ApiKeyToken("rrrrrrrrrrrr", "R" * 40)
MODELS_KEY = ApiKeyToken("mmmmmmmmmmmm", "M" * 40)


def api_key(token: ApiKeyToken, tenant_id: str, *scopes: str, revoked: bool = False) -> ApiKeyConfig:
    """Return the configuration of a key with these scopes (inference and models when none is named)."""
    return ApiKeyConfig(
        id=token.public_id,
        public_id=token.public_id,
        secret_sha256=token.secret_sha256,
        tenant_id=tenant_id,
        scopes=frozenset(scopes or ("inference", "models")),
        revoked=revoked,
    )


def simulated(name: str, **changes: object) -> DeploymentConfig:
    """Return a simulated deployment; `engine_args` and limits by keyword."""
    fields: dict[str, object] = {
        "id": name,
        "name": name,
        "model": "simulated",
        "engine": EngineKind.SIMULATED,
        "engine_args": {"ttft_ms": 5, "tpot_ms": 2},
        "max_model_len": 4096,
        "default_max_tokens": 64,
    }
    return DeploymentConfig(**{**fields, **changes})  # type: ignore[arg-type]  # msgspec checks nothing, readers do


def snapshot(version: int = 1, *deployments: DeploymentConfig) -> ConfigSnapshot:
    """Return the test configuration; `deployments` takes the place of the simulated ones."""
    return ConfigSnapshot(
        version=version,
        tenants=[TenantConfig(id=tenant, slug=tenant[0], max_connections=10_000) for tenant in (TENANT_A, TENANT_B)],
        api_keys=[
            api_key(KEY_A, TENANT_A),
            api_key(KEY_B, TENANT_B),
            api_key(REVOKED_KEY, TENANT_A, revoked=True),
            api_key(MODELS_KEY, TENANT_A, "models"),
        ],
        deployments=list(deployments)
        or [
            simulated("sim"),
            simulated("slow", engine_args={"ttft_ms": 5, "tpot_ms": 50}),
            simulated("nobody", queue_timeout_seconds=0.5),
            simulated("only-b", visible_tenant_ids=frozenset({TENANT_B})),
        ],
    )


async def publish_snapshot(redis: "Redis", config: ConfigSnapshot | None = None) -> None:
    """Store a snapshot the way the control plane does."""
    config = config or snapshot()
    await Functions(redis).call(
        "snapshot_store",
        [redis_keys.snapshot_key()],
        [config.version, encode_snapshot(config), redis_keys.snapshot_channel()],
    )
