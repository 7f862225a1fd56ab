"""Choices of adapters."""

from django.db import models


class AdapterState(models.TextChoices):
    """Whether an adapter may be used."""

    UNCHECKED = "unchecked", "Not checked"
    CHECKED = "checked", "Checked"
    REFUSED = "refused", "Refused"
