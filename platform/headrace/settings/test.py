"""Tests: a database of their own, quick password hashes, Celery tasks run in place.

Stores are the real ones where their URLs are given. Fixtures that start a Redis later set `settings.REDIS_URL`.
"""

import os
import tempfile
from pathlib import Path

from headrace.settings.base import *  # noqa: F403
from headrace.settings.base import ENVIRONMENT
from headrace.settings.urls import database_from_url

# A file, not ":memory:": tests that write from several threads need WAL as it is in real life.
_sqlite_file = Path(tempfile.gettempdir()) / f"headrace-test-{os.getpid()}.sqlite3"
DATABASES = {"default": database_from_url(ENVIRONMENT.test_database_url or f"sqlite:///{_sqlite_file}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["TEST"] = {"NAME": str(_sqlite_file)}
    DATABASES["default"]["OPTIONS"]["init_command"] += " PRAGMA synchronous=OFF;"

SECRET_KEY = "tests-sign-with-this"  # noqa: S105
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SESSION_ENGINE = "django.contrib.sessions.backends.db"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CELERY_TASK_ALWAYS_EAGER = True
CELERY_TASK_EAGER_PROPAGATES = True
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
HEADRACE_WEBHOOK_INTERNAL = True  # receivers of tests listen on loopback
