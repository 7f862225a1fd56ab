"""The Celery application: `celery -A headrace worker` and `celery -A headrace beat`."""

import sys

from celery import Celery
from celery.signals import setup_logging

from headrace.env import Environment, InvalidEnvironmentError, select_settings

try:
    select_settings()
    Environment.read()
except InvalidEnvironmentError as error:  # every process of the Django side imports this first: one line, no traceback
    sys.exit(str(error))

app = Celery("headrace")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect  # type: ignore[untyped-decorator]  # ships no types
def _keep_django_logging(**_: object) -> None:
    """Connected so that Celery leaves logging to the settings."""
