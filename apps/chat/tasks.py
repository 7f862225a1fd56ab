"""What Celery does for the chat."""

import structlog
from asgiref.sync import async_to_sync
from celery import shared_task
from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from apps.chat import selectors
from apps.chat.models import Message
from apps.chat.services import answers, conversations
from headrace_wire.functions import Functions
from headrace_wire.token_log import TokenLog

logger = structlog.get_logger(__name__)


@shared_task(name="chat.answers_collect")  # type: ignore[untyped-decorator]  # celery ships no types
def answers_collect() -> int:
    """Stores answers whose streams have ended while no browser was there to ask for it; returns how many."""
    waiting = selectors.messages_streaming()
    if not waiting:
        return 0
    return async_to_sync(_collect)(waiting)


async def _collect(waiting: list[Message]) -> int:
    stored = 0
    async with Redis.from_url(settings.REDIS_URL) as redis:
        token_log = TokenLog(redis, Functions(redis))
        try:
            for message in waiting:
                after = await answers.answer_collect(token_log=token_log, message=message)
                stored += not after.is_streaming
        except RedisError as error:
            logger.warning("answers_not_collected", error=str(error), waiting=len(waiting) - stored)
    return stored


@shared_task(name="chat.conversations_expire")  # type: ignore[untyped-decorator]  # celery ships no types
def conversations_expire() -> int:
    """Deletes conversations older than their tenant's retention; returns how many."""
    return conversations.conversations_expire()
