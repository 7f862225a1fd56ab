"""Connection URLs translated into what Django and Celery want to hear."""

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_SQLITE_OPTIONS = {
    # A deferred transaction that reads and then writes fails at once when another writer was faster, whatever the
    # timeout: thousands of "database is locked" with four writers, none with IMMEDIATE (measured).
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;",
}


def database_from_url(url: str) -> dict[str, Any]:
    """Returns an entry of `DATABASES` for a `postgresql://` or `sqlite:///` URL.

    A PostgreSQL socket folder goes into the query: `postgresql:///name?host=/run/postgresql`. Other query parameters
    (`sslmode`, `connect_timeout`, ...) are libpq's own.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path.removeprefix("/")) or ":memory:",
            "OPTIONS": dict(_SQLITE_OPTIONS),
        }
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")) or query.pop("dbname", ""),
        "USER": unquote(parts.username or "") or query.pop("user", ""),
        "PASSWORD": unquote(parts.password or "") or query.pop("password", ""),
        "HOST": query.pop("host", "") or parts.hostname or "",
        "PORT": query.pop("port", "") or str(parts.port or ""),
        "OPTIONS": query,
    }


def email_from_url(url: str) -> dict[str, Any]:
    """Returns Django's `EMAIL_*` settings without their prefix; without a URL, mail goes to the process's output.

    A name and password are only sent over TLS.
    """
    if not url:
        return {"BACKEND": "django.core.mail.backends.console.EmailBackend"}
    parts = urlsplit(url)
    is_tls = parts.scheme == "smtps"
    return {
        "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "HOST": parts.hostname or "localhost",
        "PORT": parts.port or (465 if is_tls else 25),
        "HOST_USER": unquote(parts.username or ""),
        "HOST_PASSWORD": unquote(parts.password or ""),
        "USE_SSL": is_tls,
        "USE_TLS": bool(parts.username) and not is_tls,
    }


def celery_broker_from_url(url: str) -> str:
    """Returns kombu's form of a Redis URL: it calls a unix socket `redis+socket://` and its database `virtual_host`."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = parse_qs(parts.query).get("db", ["0"])[-1]
    credentials = f"{parts.netloc}" if "@" in parts.netloc else ""
    return f"redis+socket://{credentials}{parts.path}?virtual_host={database}"
