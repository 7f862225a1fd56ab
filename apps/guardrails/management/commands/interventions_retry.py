"""`manage.py interventions_retry`: has interventions read again that were set aside."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from apps.guardrails.intervention_collector import interventions_retry


class Command(BaseCommand):
    """Moves set-aside interventions back."""

    help = "Moves interventions that could not be read back to those that wait for the database (after an update)."

    def handle(self, *_: Any, **_options: Any) -> None:  # noqa: ANN401
        """Moves them and says how many."""
        try:
            moved = interventions_retry()
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        self.stdout.write(f"{moved} moved back.")
