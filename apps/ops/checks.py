"""System checks: what cannot be right in production. `manage.py check --deploy` runs them all.

E001 debug · E002 default secret · E003 open hosts · E004 SQLite with several gateways · E005 Redis without persistence
· E006 Redis that evicts · W001 metrics without a token · W002 Redis unreachable · W003 cookies without TLS
· W004 mail that nobody gets
"""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004  # Django's own name
from redis.exceptions import RedisError

from apps.tenants.live_state import redis_client

_SHORTEST_SECRET = 32


@register(Tags.database)
def gateways_share_a_database(**_: Any) -> list[CheckMessage]:  # noqa: ANN401
    """SQLite serves one machine's processes, not several gateways'."""
    engine = settings.DATABASES["default"]["ENGINE"]
    if settings.HEADRACE_GATEWAY_COUNT > 1 and engine.endswith("sqlite3"):
        hint = "Set DATABASE_URL to a PostgreSQL server."
        return [Error("Several gateways cannot share a SQLite file.", hint=hint, id="headrace.E004")]
    return []


@register(Tags.security, deploy=True)
def settings_are_closed(**_: Any) -> list[CheckMessage]:  # noqa: ANN401
    """Debug pages, well-known secrets, any host, plain cookies, open metrics."""
    found: list[CheckMessage] = []
    if settings.DEBUG:
        found.append(Error("Debug pages show code and settings to everybody.", id="headrace.E001"))
    if settings.HEADRACE_SECRET_KEY_IS_DEFAULT or len(settings.SECRET_KEY) < _SHORTEST_SECRET:
        hint = f"Set HEADRACE_SECRET_KEY to at least {_SHORTEST_SECRET} random characters."
        found.append(Error("The secret key is the default one or short.", hint=hint, id="headrace.E002"))
    if "*" in settings.ALLOWED_HOSTS:
        hint = "Name the hosts in HEADRACE_ALLOWED_HOSTS."
        found.append(Error("Every Host header is accepted.", hint=hint, id="headrace.E003"))
    if settings.HEADRACE_METRICS_TOKEN is None:
        hint = "Set HEADRACE_METRICS_TOKEN and give it to Prometheus."
        found.append(Warning("Everybody on this machine can read /metrics.", hint=hint, id="headrace.W001"))
    if not (settings.SESSION_COOKIE_SECURE and settings.CSRF_COOKIE_SECURE):
        hint = "Serve over TLS and leave HEADRACE_SECURE_COOKIES on."
        found.append(Warning("Session cookies are sent over plain HTTP.", hint=hint, id="headrace.W003"))
    if not settings.HEADRACE_EMAIL_IS_SENT:
        hint = "Set HEADRACE_EMAIL_URL to a mail server."
        found.append(Warning("Notices for tenants go to the log, not out by email.", hint=hint, id="headrace.W004"))
    return found


@register("redis", deploy=True)
def redis_keeps_what_it_is_given(**_: Any) -> list[CheckMessage]:  # noqa: ANN401
    """Token logs, queues and leases live in Redis: it must survive a restart and must not evict."""
    try:
        memory, persistence = redis_client().info("memory"), redis_client().info("persistence")
    except RedisError as error:
        return [Warning(f"Redis does not answer: {error}", id="headrace.W002")]
    found: list[CheckMessage] = []
    if not persistence.get("aof_enabled"):
        hint = "Start it with `appendonly yes`."
        found.append(Error("Redis loses running streams when it restarts.", hint=hint, id="headrace.E005"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        hint = "Set `maxmemory-policy noeviction`."
        found.append(Error(f"Redis evicts keys when it is full ({policy}).", hint=hint, id="headrace.E006"))
    return found
