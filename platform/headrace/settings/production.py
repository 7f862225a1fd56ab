"""Behind TLS, with PostgreSQL and a Redis of its own. `manage.py check --deploy` says what is still open."""

from headrace.settings.base import *  # noqa: F403
from headrace.settings.base import DATABASES, ENVIRONMENT

if DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
    DATABASES["default"]["OPTIONS"].setdefault("pool", {"min_size": 1, "max_size": 8, "timeout": 10})

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SESSION_COOKIE_SECURE = ENVIRONMENT.secure_cookies
CSRF_COOKIE_SECURE = ENVIRONMENT.secure_cookies
SECURE_SSL_REDIRECT = ENVIRONMENT.secure_cookies
SECURE_REDIRECT_EXEMPT = [r"^livez$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 3600 * 24 * 30 if ENVIRONMENT.secure_cookies else 0
