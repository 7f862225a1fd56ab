"""Choices of this app's models."""

from django.db import models

from headrace_wire import api_key


class ApiKeyScope(models.TextChoices):
    """What a key may be used for."""

    INFERENCE = api_key.ApiKeyScope.INFERENCE, "Generate (chat, completions, streams)"
    MODELS = api_key.ApiKeyScope.MODELS, "List models"
    USAGE = api_key.ApiKeyScope.USAGE, "Read usage"
