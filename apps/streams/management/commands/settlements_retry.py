"""`manage.py settlements_retry`: settles the ended streams whose settlement had failed and was set aside."""

from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from headrace_wire.functions import Functions
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import settle_set_aside


class Command(BaseCommand):
    """Settles what was set aside."""

    help = "Settles ended streams whose settlement had failed and was set aside (once the cause is mended)."

    def handle(self, *_: Any, **_options: Any) -> None:  # noqa: ANN401
        """Settles them and says how many, and which cannot be."""
        try:
            settled, failed = async_to_sync(_settle)()
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        self.stdout.write(f"{settled} settled.")
        for stream_id in failed:
            self.stdout.write(f"{stream_id} still cannot be settled.")


async def _settle() -> tuple[int, list[str]]:
    redis = connect(settings.REDIS_URL)
    try:
        return await settle_set_aside(redis, Functions(redis))
    finally:
        await redis.aclose()
