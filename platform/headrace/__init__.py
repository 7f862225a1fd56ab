"""The Django project: settings, routes, the Celery application and the gateway's server."""

from headrace.celery import app as celery_app

__all__ = ["celery_app"]
