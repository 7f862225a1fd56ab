from importlib import import_module
from pkgutil import iter_modules

import pytest
from django.apps import apps
from django.db import connection
from django_celery_beat.models import PeriodicTask

from apps.ops import migrations
from headrace.celery import app


@pytest.mark.django_db
def test_everything_that_beat_runs_is_a_task() -> None:
    # A transactional test that ran before in this process has emptied the tables that migrations filled.
    for module in sorted(module.name for module in iter_modules(migrations.__path__)):
        seed = getattr(import_module(f"{migrations.__name__}.{module}"), "seed", None)
        if seed is not None:
            seed(apps, connection.schema_editor())
    app.loader.import_default_modules()
    scheduled = {name for name in PeriodicTask.objects.values_list("task", flat=True) if not name.startswith("celery.")}
    assert "streams.garbage_collect" in scheduled
    assert scheduled <= app.tasks.keys()
