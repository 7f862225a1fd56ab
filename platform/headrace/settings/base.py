"""Settings common to every way of running. What differs by machine comes from `headrace.env`."""

from pathlib import Path
from typing import Any

from headrace.env import DEVELOPMENT_SECRET_KEY, REPOSITORY_ROOT, Environment, metrics_directory
from headrace.logs import logging_config
from headrace.settings import admin_theme
from headrace.settings.urls import celery_broker_from_url, database_from_url, email_from_url

ENVIRONMENT = Environment.read()
BASE_DIR: Path = REPOSITORY_ROOT

SECRET_KEY = ENVIRONMENT.secret_key
DEBUG = False
ALLOWED_HOSTS: list[str] = list(ENVIRONMENT.allowed_hosts)
CSRF_TRUSTED_ORIGINS: list[str] = list(ENVIRONMENT.csrf_trusted_origins)

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "django_celery_beat",
    "django_prometheus",
    "apps.tenants",
    "apps.accounts",
    "apps.deployments",
    "apps.quotas",
    "apps.usage",
    "apps.guardrails",
    "apps.caching",
    "apps.streams",
    "apps.api",
    "apps.chat",
    "apps.ops",
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "headrace.static_files.StaticFilesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "headrace.urls"
ASGI_APPLICATION = "headrace.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# ---- stores

DATABASES = {"default": database_from_url(ENVIRONMENT.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = ENVIRONMENT.redis_url
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "headrace.cache.MeteredRedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": f"{ENVIRONMENT.redis_prefix}:cache",
    },
}
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": f"{ENVIRONMENT.redis_prefix}:channels"},
    },
}

# ---- people

AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "accounts:login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "accounts:login"
SESSION_ENGINE = "django.contrib.sessions.backends.cached_db"
SESSION_COOKIE_NAME = "headrace_session"
CSRF_COOKIE_NAME = "headrace_csrf"
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

UNFOLD = admin_theme.UNFOLD

# ---- mail: notices to owners and admins of tenants

_EMAIL = email_from_url(ENVIRONMENT.email_url)
EMAIL_BACKEND = _EMAIL["BACKEND"]
EMAIL_HOST = _EMAIL.get("HOST", "")
EMAIL_PORT = _EMAIL.get("PORT", 0)
EMAIL_HOST_USER = _EMAIL.get("HOST_USER", "")
EMAIL_HOST_PASSWORD = _EMAIL.get("HOST_PASSWORD", "")
EMAIL_USE_SSL = _EMAIL.get("USE_SSL", False)
EMAIL_USE_TLS = _EMAIL.get("USE_TLS", False)
EMAIL_TIMEOUT = 10
EMAIL_SUBJECT_PREFIX = "[Headrace] "
DEFAULT_FROM_EMAIL = SERVER_EMAIL = ENVIRONMENT.email_from

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

# ---- static files: served by the gateway itself, straight from the source folders

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True

# ---- Celery: decides and cleans, never on the token path

CELERY_BROKER_URL = celery_broker_from_url(REDIS_URL)
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "global_keyprefix": f"{ENVIRONMENT.redis_prefix}:celery:",
    # Tasks here end within seconds; one that was lost with its process is given to another soon.
    "visibility_timeout": 600,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TIME_LIMIT = 120
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = TIME_ZONE
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
DJANGO_CELERY_BEAT_TZ_AWARE = True

# ---- Headrace

HEADRACE_GATEWAY_ID = ENVIRONMENT.gateway_id
HEADRACE_GATEWAY_COUNT = ENVIRONMENT.gateway_count
HEADRACE_SECRET_KEY_IS_DEFAULT = SECRET_KEY == DEVELOPMENT_SECRET_KEY
HEADRACE_CHECKPOINT_DIR = ENVIRONMENT.checkpoint_dir
HEADRACE_LEASE_SECONDS = ENVIRONMENT.lease_seconds
HEADRACE_AUTOSCALE_SECONDS = ENVIRONMENT.autoscale_seconds
HEADRACE_KUBECONFIG = ENVIRONMENT.kubeconfig
HEADRACE_STATE_DIR = ENVIRONMENT.state_dir
HEADRACE_PREFER_MS = ENVIRONMENT.prefer_ms
HEADRACE_SEMANTIC_MS = ENVIRONMENT.semantic_ms
HEADRACE_TRACED = bool(ENVIRONMENT.otlp_endpoint)
HEADRACE_SOFT_STREAMS = ENVIRONMENT.soft_streams
HEADRACE_MAX_STREAMS = ENVIRONMENT.max_streams
HEADRACE_USER_CONNECTIONS = ENVIRONMENT.user_connections
HEADRACE_MEMBER_KEYS = ENVIRONMENT.member_keys
HEADRACE_WEBHOOK_INTERNAL = bool(ENVIRONMENT.webhook_internal)
HEADRACE_INTERVENTION_DAYS = ENVIRONMENT.intervention_days
HEADRACE_EMAIL_IS_SENT = bool(ENVIRONMENT.email_url)
HEADRACE_METRICS_TOKEN = ENVIRONMENT.metrics_token
HEADRACE_METRICS_DIRECTORY = metrics_directory()

PROMETHEUS_EXPORT_MIGRATIONS = False
LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = logging_config(level=ENVIRONMENT.log_level, as_json=ENVIRONMENT.log_json)
