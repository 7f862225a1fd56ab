"""Lets Celery beat run the autoscaler. Operators change it in the admin; it is not written again."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SCHEDULE = {
    "Autoscale": ("deployments.autoscale_tick", 15),
    "Wake deployments without workers": ("deployments.autoscale_wake", 3),
    "Delete old scaling samples": ("deployments.autoscale_clean", 3600),
}


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds the entries that are not there."""
    interval = apps.get_model("django_celery_beat", "IntervalSchedule")
    for name, (task, seconds) in SCHEDULE.items():
        every, _ = interval.objects.get_or_create(every=seconds, period="seconds")
        apps.get_model("django_celery_beat", "PeriodicTask").objects.get_or_create(
            name=name, defaults={"task": task, "interval": every, "expire_seconds": seconds}
        )


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes them."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name__in=SCHEDULE).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0011_latency_schedule"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
