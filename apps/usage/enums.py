"""Choices of this app's models. How a stream ended comes from the wire."""

from django.db import models

from headrace_wire import messages, usage_events


class Bucket(models.TextChoices):
    """How long the time is that a roll-up sums up, by the tenant's clock."""

    HOUR = "hour", "Hour"
    DAY = "day", "Day"


class Group(models.TextChoices):
    """What sums can be split by; the names of `Attribution`'s columns."""

    DEPLOYMENT = "deployment", "Deployment"
    API_KEY = "api_key", "API key"
    USER = "user", "Member"
    TENANT = "tenant", "Tenant"


class Channel(models.TextChoices):
    """How a notice reaches its tenant."""

    EMAIL = "email", "Email"
    WEBHOOK = "webhook", "Webhook"


class StreamState(models.TextChoices):
    """How a stream ended."""

    FINISHED = messages.StreamState.FINISHED, "Finished"
    FAILED = messages.StreamState.FAILED, "Failed"
    CANCELLED = messages.StreamState.CANCELLED, "Cancelled"
    REPLACED = messages.StreamState.REPLACED, "Replaced"


class FinishReason(models.TextChoices):
    """Why its generation ended; what there was until then is billed."""

    STOP = messages.FinishReason.STOP, "Stop"
    LENGTH = messages.FinishReason.LENGTH, "Length"
    TOOL_CALLS = messages.FinishReason.TOOL_CALLS, "Tool calls"
    CONTENT_FILTER = messages.FinishReason.CONTENT_FILTER, "Content filter"
    ABORT = messages.FinishReason.ABORT, "Abort"
    ERROR = messages.FinishReason.ERROR, "Error"


class AnswerSource(models.TextChoices):
    """Where an answer came from."""

    ENGINE = usage_events.AnswerSource.ENGINE, "Engine"
    CACHE = usage_events.AnswerSource.CACHE, "Response cache"
    SHARED = usage_events.AnswerSource.SHARED, "The same request's stream"
