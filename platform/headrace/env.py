"""The one place where the Django side reads the process environment.

`Environment.read` fails at start with the name of the variable that is wrong; the value is never repeated, it may be a
secret.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent.parent

DEVELOPMENT_SECRET_KEY = "development-only-not-a-secret"  # noqa: S105
"""Signs sessions where nobody set a key; check `headrace.E002` refuses it in production."""

_SETTINGS = ("development", "test", "production")
_REDIS_SCHEMES = ("redis", "rediss", "unix")
_OTLP_SCHEMES = ("http", "https")
_EMAIL_SCHEMES = ("smtp", "smtps")
_DATABASE_SCHEMES = ("postgres", "postgresql", "sqlite")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class InvalidEnvironmentError(Exception):
    """A variable is missing or has a value that cannot be used. The message starts with its name."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the processes of the Django side are told. Secrets stay out of the `repr`."""

    host: str
    port: int
    state_dir: Path
    """Where the embedded default keeps its files; absolute."""
    checkpoint_dir: Path | None
    """Where this installation's workers keep KV checkpoints, if this machine sees it too; absolute."""
    redis_url: str = field(repr=False)
    """`redis://`, `rediss://` or `unix://`; a local Redis where nothing was given."""
    redis_prefix: str
    """Starts the keys of cache, broker and channel layer."""
    database_url: str = field(repr=False)
    """`postgresql://` or `sqlite:///`; a file in `state_dir` where nothing was given."""
    test_database_url: str | None = field(repr=False)
    secret_key: str = field(repr=False)
    allowed_hosts: tuple[str, ...]
    csrf_trusted_origins: tuple[str, ...]
    metrics_token: str | None = field(repr=False)
    """Bearer token of `/metrics`; without one only loopback may read it."""
    email_url: str = field(repr=False)
    """`smtp://` (STARTTLS where a user is named) or `smtps://`; empty: mail goes to the log."""
    email_from: str
    gateway_id: str
    gateway_count: int
    """How many gateways this installation runs, for checks only."""
    lease_seconds: float
    """How long a silent gateway is taken for alive; the workers' leases come from the same variable."""
    autoscale_seconds: float
    """Between two looks of the autoscaler; its policies name their own times."""
    kubeconfig: Path | None
    """How to reach Kubernetes; None: as a pod of its own cluster."""
    prefer_ms: int
    """How long a waiting stream is left to the worker that holds its prompt's beginning; 0 leaves none."""
    semantic_ms: int
    """By which a static request is delayed at most to find a question that asks for the same."""
    otlp_endpoint: str = field(repr=False)
    """Collector of traces, OTLP over HTTP; empty: requests are not traced."""
    soft_streams: int
    """Streams that one gateway serves at once; more wait in line."""
    max_streams: int
    """Streams of one gateway, those in line included; one more is refused with 503 and a retry time."""
    user_connections: int
    """Connections that one signed-in user may have open at one gateway; a tenant's own limit is its setting."""
    webhook_internal: bool | None
    """Whether webhooks may lead to internal addresses; None: only where the settings are those of development."""
    member_keys: int
    """API keys that work which a member may have of those that he makes himself."""
    intervention_days: int
    """Until interventions of guardrails are deleted; their excerpts go with the tenant's retention."""
    debug: bool
    secure_cookies: bool
    log_level: str
    log_json: bool

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Reads `environ` (the process environment by default).

        Raises:
            InvalidEnvironmentError: A variable cannot be used.
        """
        source = os.environ if environ is None else environ
        state_dir = Path(_text(source, "HEADRACE_STATE_DIR", str(REPOSITORY_ROOT / "var"))).absolute()
        return cls(
            host=_text(source, "HEADRACE_HOST", "127.0.0.1"),
            port=_integer(source, "HEADRACE_PORT", 8000, low=1, high=65535),
            state_dir=state_dir,
            checkpoint_dir=_folder(source, "HEADRACE_CHECKPOINT_DIR"),
            redis_url=_url(source, "REDIS_URL", _REDIS_SCHEMES, "redis://127.0.0.1:6379/0"),
            redis_prefix=_text(source, "HEADRACE_REDIS_PREFIX", "hr"),
            database_url=_url(source, "DATABASE_URL", _DATABASE_SCHEMES, f"sqlite:///{state_dir / 'headrace.sqlite3'}"),
            test_database_url=_url(source, "HEADRACE_TEST_DATABASE_URL", _DATABASE_SCHEMES, "")
            or _url(source, "DATABASE_URL", _DATABASE_SCHEMES, "")
            or None,
            secret_key=_text(source, "HEADRACE_SECRET_KEY", DEVELOPMENT_SECRET_KEY),
            allowed_hosts=_words(source, "HEADRACE_ALLOWED_HOSTS", ("127.0.0.1", "localhost", "[::1]")),
            csrf_trusted_origins=_words(source, "HEADRACE_CSRF_TRUSTED_ORIGINS", ()),
            metrics_token=_text(source, "HEADRACE_METRICS_TOKEN", "") or None,
            email_url=_url(source, "HEADRACE_EMAIL_URL", _EMAIL_SCHEMES, ""),
            email_from=_text(source, "HEADRACE_EMAIL_FROM", "headrace@localhost"),
            gateway_id=_text(source, "HEADRACE_GATEWAY_ID", f"gateway-{secrets.token_hex(6)}"),
            gateway_count=_integer(source, "HEADRACE_GATEWAY_COUNT", 1, low=1, high=10_000),
            lease_seconds=_seconds(source, "HEADRACE_LEASE_SECONDS", 5.0),
            autoscale_seconds=_seconds(source, "HEADRACE_AUTOSCALE_SECONDS", 15.0),
            kubeconfig=_folder(source, "HEADRACE_KUBECONFIG"),
            prefer_ms=_integer(source, "HEADRACE_PREFER_MS", 80, low=0, high=10_000),
            semantic_ms=_integer(source, "HEADRACE_SEMANTIC_MS", 100, low=1, high=60_000),
            otlp_endpoint=_url(source, "OTEL_EXPORTER_OTLP_ENDPOINT", _OTLP_SCHEMES, ""),
            soft_streams=_integer(source, "HEADRACE_SOFT_STREAMS", 1024, low=1, high=1_000_000),
            max_streams=_integer(source, "HEADRACE_MAX_STREAMS", 2048, low=1, high=1_000_000),
            user_connections=_integer(source, "HEADRACE_USER_CONNECTIONS", 64, low=1, high=1_000_000),
            webhook_internal=_flag(source, "HEADRACE_WEBHOOK_INTERNAL", default=False)
            if source.get("HEADRACE_WEBHOOK_INTERNAL", "").strip()
            else None,
            member_keys=_integer(source, "HEADRACE_MEMBER_KEYS", 20, low=1, high=10_000),
            intervention_days=_integer(source, "HEADRACE_INTERVENTION_DAYS", 90, low=1, high=3650),
            debug=_flag(source, "HEADRACE_DEBUG", default=False),
            secure_cookies=_flag(source, "HEADRACE_SECURE_COOKIES", default=True),
            log_level=_choice(source, "HEADRACE_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO"),
            log_json=_flag(source, "HEADRACE_LOG_JSON", default=False),
        )


def select_settings() -> None:
    """Chooses the settings module by `HEADRACE_SETTINGS`, unless `DJANGO_SETTINGS_MODULE` says it already.

    Raises:
        InvalidEnvironmentError: There are no settings of that name.
    """
    name = _choice(os.environ, "HEADRACE_SETTINGS", _SETTINGS, "development")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", f"headrace.settings.{name}")


def metrics_directory() -> Path | None:
    """Returns where the processes of this machine share their counters (`PROMETHEUS_MULTIPROC_DIR`), if they do."""
    value = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
    return Path(value) if value else None


def _text(source: Mapping[str, str], name: str, default: str) -> str:
    return source.get(name, "").strip() or default


def _folder(source: Mapping[str, str], name: str) -> Path | None:
    text = _text(source, name, "")
    if text and not Path(text).is_absolute():
        raise InvalidEnvironmentError(name, "must be an absolute path.")
    return Path(text) if text else None


def _words(source: Mapping[str, str], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in source.get(name, "").split(",") if word.strip())
    return words or default


def _integer(source: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    try:
        value = int(_text(source, name, str(default)))
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InvalidEnvironmentError(name, f"must be a whole number from {low} to {high}.")
    return value


def _seconds(source: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(_text(source, name, str(default)))
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 86_400:
        raise InvalidEnvironmentError(name, "must be a number of seconds from 0.01 to 86400.")
    return value


def _flag(source: Mapping[str, str], name: str, *, default: bool) -> bool:
    if name not in source:
        return default
    value = source[name].strip().lower()
    if value not in _TRUE | _FALSE:
        raise InvalidEnvironmentError(name, "must be 1 or 0.")
    return value in _TRUE


def _choice(source: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = _text(source, name, default)
    if value not in choices:
        raise InvalidEnvironmentError(name, f"must be one of {', '.join(choices)}.")
    return value


def _url(source: Mapping[str, str], name: str, schemes: tuple[str, ...], default: str) -> str:
    value = _text(source, name, default)
    try:
        scheme = urlsplit(value).scheme
    except ValueError:
        scheme = ""
    if value and scheme not in schemes:
        raise InvalidEnvironmentError(name, f"must be a URL that starts with one of {', '.join(schemes)}.")
    return value
