"""`manage.py publish_snapshot`: gives gateways the configuration as the database has it."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from apps.tenants.snapshots import snapshot_publish


class Command(BaseCommand):
    """Publishes the configuration snapshot."""

    help = "Publishes the configuration snapshot to Redis, whether it changed or not."

    def handle(self, *_: Any, **_options: Any) -> None:  # noqa: ANN401
        """Publishes and says the version."""
        try:
            version = snapshot_publish()
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        self.stdout.write(f"Version {version}." if version else "Somebody published a newer one meanwhile.")
