"""Alert rules of what heals itself: lost and quarantined workers, engines that ended, circuit breakers."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_OF_THE_FLEET = {
    "signal": "fleet",
    "threshold": 0,
    "clear_threshold": 0,
    "for_seconds": 0,
    "window_seconds": 300,
    "direction": "above",
}
RULES: dict[str, dict[str, object]] = {
    "worker-quarantined": {
        **_OF_THE_FLEET,
        "name": "A worker is in quarantine",
        "advice": "Too many of its engines have ended: read its last error, mend that, and resume it on its page.",
        "severity": "critical",
        "figure": "workers_quarantined",
    },
    "worker-lost": {
        **_OF_THE_FLEET,
        "name": "A worker was lost",
        "advice": "Its process died or hung, and its streams went on elsewhere. Look at its supervisor's log.",
        "severity": "warning",
        "figure": "workers_lost",
    },
    "engine-ended": {
        **_OF_THE_FLEET,
        "name": "An engine had to be started again",
        "advice": "It died, or failed too many answers. The worker's log and last error say why.",
        "severity": "info",
        "figure": "engine_failures",
    },
    "breaker-open": {
        **_OF_THE_FLEET,
        "name": "A circuit breaker is open",
        "advice": "Requests go to the fallback, or are refused. The deployment's page says why and since when.",
        "severity": "critical",
        "figure": "breaker_open",
    },
}


def seed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Adds what is not there."""
    rules = apps.get_model("ops", "AlertRule")
    for key, fields in RULES.items():
        rules.objects.get_or_create(key=key, defaults={**fields, "is_built_in": True})


def unseed(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Removes it."""
    apps.get_model("ops", "AlertRule").objects.filter(key__in=RULES).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0017_healing_figures"),
    ]

    operations = [migrations.RunPython(seed, unseed)]
