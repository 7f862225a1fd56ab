"""Lets Celery beat note what the fleet looks like, and sum up latencies. Operators change it in the admin; it is not written again."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SCHEDULE = {
    "Note what the fleet looks like": ("ops.fleet_sample", 10),
    "Sum up latencies": ("ops.latency_roll_up", 60),
    "Delete old latencies": ("ops.latency_expire", 3600),
}
"""Name to task and seconds between two runs. A run that waited longer than that is dropped, the next one is due."""


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds the entries that are not there."""
    interval = apps.get_model("django_celery_beat", "IntervalSchedule")
    periodic_task = apps.get_model("django_celery_beat", "PeriodicTask")
    for name, (task, seconds) in SCHEDULE.items():
        every, _ = interval.objects.get_or_create(every=seconds, period="seconds")
        periodic_task.objects.get_or_create(
            name=name, defaults={"task": task, "interval": every, "expire_seconds": seconds}
        )


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes them."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name__in=SCHEDULE).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0010_live_streams"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
