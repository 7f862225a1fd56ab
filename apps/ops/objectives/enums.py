"""Choices of objectives."""

from django.db import models

from headrace_wire.latency import measures


class Indicator(models.TextChoices):
    """What an objective is about: a duration, or whether streams failed."""

    TTFT = measures.Measure.TTFT, "Time to first token"
    QUEUE = measures.Measure.QUEUE, "Queue"
    PREFILL = measures.Measure.PREFILL, "Prefill"
    TPOT = measures.Measure.TPOT, "Time per token"
    GAP = measures.Measure.GAP, "Gap between tokens"
    TOTAL = measures.Measure.TOTAL, "Total"
    ERRORS = measures.Tally.ERRORS, "Streams without an error"
