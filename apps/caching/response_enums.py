"""Choices of the response cache."""

from django.db import models

from headrace_wire import response_cache_terms


class StaticRule(models.TextChoices):
    """Which requests have an answer that is worth keeping."""

    TEMPERATURE_ZERO = response_cache_terms.StaticRule.TEMPERATURE_ZERO, "Requests at temperature 0, or that ask for it"
    OPT_IN = response_cache_terms.StaticRule.OPT_IN, "Only requests that ask for it"
