"""Seeds the alert rules that an installation begins with, who is told, and Celery's look at them.

Operators change all three in the admin; it is not written again.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

SCHEDULE = {
    "Look at alert rules": ("ops.alerts_evaluate", 15),
    "Tell of alerts": ("ops.alerts_send", 5),
    "Delete old alerts": ("ops.alerts_expire", 3600),
}
"""Name to task and seconds between two runs. A run that waited longer than that is dropped, the next one is due."""

RECEIVER = "Operators"
"""All operators, by email."""

RULES: dict[str, dict[str, object]] = {
    "ttft-p95": {
        "name": "First tokens are late",
        "advice": "The diagnosis beside the latency dashboard says which phase moved and what helps.",
        "signal": "percentile",
        "threshold": 0.5,
        "clear_threshold": 0.4,
        "for_seconds": 120,
        "severity": "warning",
        "window_seconds": 300,
        "direction": "above",
        "duration": "ttft",
        "percentile": 95.0,
    },
    "errors": {
        "name": "Streams fail",
        "advice": "Look at the workers' states and last errors, and at the streams that failed.",
        "signal": "share",
        "threshold": 0.05,
        "clear_threshold": 0.02,
        "for_seconds": 60,
        "severity": "critical",
        "window_seconds": 300,
        "direction": "above",
        "happening": "errors",
    },
    "queue-depth": {
        "name": "The queue is long",
        "advice": "Add workers, or lower what tenants may send at once.",
        "signal": "fleet",
        "threshold": 100,
        "clear_threshold": 50,
        "for_seconds": 60,
        "severity": "warning",
        "window_seconds": 300,
        "direction": "above",
        "figure": "waiting",
    },
    "no-worker": {
        "name": "No worker is ready",
        "advice": "Nothing is answered: start a worker, and read the last engine error on the deployment's page.",
        "signal": "fleet",
        "threshold": 1,
        "clear_threshold": 1,
        "for_seconds": 60,
        "severity": "critical",
        "window_seconds": 300,
        "direction": "below",
        "figure": "workers_ready",
    },
    "kv-cache": {
        "name": "A KV cache is almost full",
        "advice": "Requests will wait or be recomputed: add workers, or lower max_num_seqs or the model's length.",
        "signal": "fleet",
        "threshold": 0.9,
        "clear_threshold": 0.8,
        "for_seconds": 300,
        "severity": "warning",
        "window_seconds": 300,
        "direction": "above",
        "figure": "kv_cache_usage",
    },
    "memory": {
        "name": "Memory is almost full",
        "advice": "Unload a model that nobody asks for, or give the engine less of the memory.",
        "signal": "fleet",
        "threshold": 0.9,
        "clear_threshold": 0.85,
        "for_seconds": 300,
        "severity": "warning",
        "window_seconds": 300,
        "direction": "above",
        "figure": "memory_usage",
    },
    "worker-broken": {
        "name": "A worker cannot work",
        "advice": "Its engine did not start or broke; the deployment's page has its last words.",
        "signal": "fleet",
        "threshold": 0,
        "clear_threshold": 0,
        "for_seconds": 30,
        "severity": "warning",
        "window_seconds": 300,
        "direction": "above",
        "figure": "workers_broken",
    },
    "burn-fast": {
        "name": "An error budget burns fast",
        "advice": "At this pace a budget of thirty days is gone in two. Look at the diagnosis now.",
        "signal": "burn_rate",
        "threshold": 14.4,
        "clear_threshold": 14.4,
        "for_seconds": 0,
        "severity": "critical",
        "window_seconds": 3600,
        "short_window_seconds": 300,
        "direction": "above",
    },
    "burn-slow": {
        "name": "An error budget burns",
        "advice": "At this pace a budget of thirty days is gone in five. Look at the diagnosis today.",
        "signal": "burn_rate",
        "threshold": 6,
        "clear_threshold": 6,
        "for_seconds": 0,
        "severity": "warning",
        "window_seconds": 21600,
        "short_window_seconds": 1800,
        "direction": "above",
    },
    "burn-budget": {
        "name": "An error budget will not last",
        "advice": "At this pace the budget is used up at the end of its window, or before.",
        "signal": "burn_rate",
        "threshold": 1,
        "clear_threshold": 1,
        "for_seconds": 0,
        "severity": "info",
        "window_seconds": 259200,
        "short_window_seconds": 21600,
        "direction": "above",
    },
}


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds what is not there."""
    interval = apps.get_model("django_celery_beat", "IntervalSchedule")
    periodic_task = apps.get_model("django_celery_beat", "PeriodicTask")
    for name, (task, seconds) in SCHEDULE.items():
        every, _ = interval.objects.get_or_create(every=seconds, period="seconds")
        periodic_task.objects.get_or_create(
            name=name, defaults={"task": task, "interval": every, "expire_seconds": seconds}
        )
    apps.get_model("ops", "AlertReceiver").objects.get_or_create(
        name=RECEIVER, defaults={"channel": "email", "is_default": True}
    )
    rules = apps.get_model("ops", "AlertRule")
    for key, fields in RULES.items():
        rules.objects.get_or_create(key=key, defaults={**fields, "is_built_in": True})


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes it."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(name__in=SCHEDULE).delete()
    apps.get_model("ops", "AlertRule").objects.filter(key__in=RULES).delete()
    apps.get_model("ops", "AlertReceiver").objects.filter(name=RECEIVER).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0008_alerts"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
