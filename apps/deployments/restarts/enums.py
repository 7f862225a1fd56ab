"""Choices of restarts."""

from django.db import models


class RestartState(models.TextChoices):
    """How far a restart is."""

    RUNNING = "running", "Running"
    DONE = "done", "Done"
    STOPPED = "stopped", "Stopped"
