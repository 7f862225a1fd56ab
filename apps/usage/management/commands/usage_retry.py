"""`manage.py usage_retry`: lets the ledger read again what it has set aside."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from apps.usage.ledger import usage_retry


class Command(BaseCommand):
    """Moves set-aside usage back."""

    help = "Moves ended streams that the ledger could not read back to those that wait for it (after an update)."

    def handle(self, *_: Any, **_options: Any) -> None:  # noqa: ANN401
        """Moves them and says how many."""
        try:
            moved = usage_retry()
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        self.stdout.write(f"{moved} moved back.")
