"""Asks each minute who is to be warmed up: how long a worker must have been idle, its deployment says now."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

NAME, BEFORE, NOW = "Warm up idle workers", 300, 60


def _set(apps: Apps, before: int, now: int) -> None:
    """Changes the entry where operators have left it as it was."""
    interval = apps.get_model("django_celery_beat", "IntervalSchedule")
    every, _ = interval.objects.get_or_create(every=now, period="seconds")
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(
        name=NAME, interval__every=before, interval__period="seconds"
    ).update(interval=every, expire_seconds=now)


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """From five minutes to one."""
    _set(apps, BEFORE, NOW)


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """From one minute to five."""
    _set(apps, NOW, BEFORE)


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0005_prompt_cache_schedule"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
