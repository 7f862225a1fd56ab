"""Choices of this app's models."""

from django.db import models


class MessageRole(models.TextChoices):
    """Who speaks."""

    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"


class MessageState(models.TextChoices):
    """Where a message is. A user's is `complete` from the start."""

    STREAMING = "streaming", "Being written"
    COMPLETE = "complete", "Complete"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
