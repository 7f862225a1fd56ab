"""One machine: the embedded default of `make up`. Plain HTTP on loopback; `HEADRACE_DEBUG=1` shows tracebacks."""

from headrace.settings.base import *  # noqa: F403
from headrace.settings.base import ENVIRONMENT

DEBUG = ENVIRONMENT.debug
HEADRACE_WEBHOOK_INTERNAL = ENVIRONMENT.webhook_internal is not False
