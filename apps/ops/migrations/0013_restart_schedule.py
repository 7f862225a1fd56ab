"""Lets Celery beat drive restarts of workers. Operators change it in the admin; it is not written again."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

NAME, TASK, SECONDS = "Restart workers one after another", "deployments.restarts_advance", 5
"""A run that waited longer than the seconds between two is dropped, the next one is due."""


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds the entry where it is not there."""
    interval = apps.get_model("django_celery_beat", "IntervalSchedule")
    every, _ = interval.objects.get_or_create(every=SECONDS, period="seconds")
    apps.get_model("django_celery_beat", "PeriodicTask").objects.get_or_create(
        name=NAME, defaults={"task": TASK, "interval": every, "expire_seconds": SECONDS}
    )


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes it."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name=NAME).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0012_autoscale_schedule"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
