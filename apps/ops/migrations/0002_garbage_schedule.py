"""Lets Celery beat sweep what dead processes left in Redis. Operators change it in the admin; it is not written again."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

NAME = "Free what dead processes left"
EVERY_SECONDS = 300


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds the entry unless it is there."""
    every, _ = apps.get_model("django_celery_beat", "IntervalSchedule").objects.get_or_create(
        every=EVERY_SECONDS, period="seconds"
    )
    apps.get_model("django_celery_beat", "PeriodicTask").objects.get_or_create(
        name=NAME, defaults={"task": "streams.garbage_collect", "interval": every, "expire_seconds": EVERY_SECONDS}
    )


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes it."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name=NAME).delete()


class Migration(migrations.Migration):
    dependencies = [("ops", "0001_beat_schedule"), ("django_celery_beat", "0019_alter_periodictasks_options")]

    operations = [migrations.RunPython(seed, unseed)]
