"""`manage.py monitoring_files`: writes the files for Prometheus and Grafana below `deploy/`."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from apps.ops.monitoring.files import monitoring_files


class Command(BaseCommand):
    """Writes them, or says which differ."""

    help = "Writes deploy/prometheus/headrace-rules.yml and deploy/grafana/headrace.json from the names in the code."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the option."""
        parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")

    def handle(self, *_: Any, check: bool, **_options: Any) -> None:  # noqa: ANN401
        """Writes or checks."""
        different = []
        for place, text in monitoring_files().items():
            path = settings.BASE_DIR / place
            if path.exists() and path.read_text("utf-8") == text:
                continue
            different.append(str(place))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
        if check and different:
            raise CommandError(f"differ: {', '.join(different)}; run manage.py monitoring_files")
        self.stdout.write(f"written: {', '.join(different)}" if different else "nothing to do")
