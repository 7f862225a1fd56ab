import pytest
from django_celery_beat.models import PeriodicTask

from headrace.celery import app


@pytest.mark.django_db
def test_everything_that_beat_runs_is_a_task() -> None:
    app.loader.import_default_modules()
    scheduled = {name for name in PeriodicTask.objects.values_list("task", flat=True) if not name.startswith("celery.")}
    assert "streams.garbage_collect" in scheduled
    assert scheduled <= app.tasks.keys()
