"""Choices of alerts."""

from django.db import models

from headrace_wire.latency import measures


class Signal(models.TextChoices):
    """What a rule looks at."""

    PERCENTILE = "percentile", "Percentile of a duration (s)"
    SHARE = "share", "Share of requests (0 to 1)"
    FLEET = "fleet", "Figure of the fleet"
    BURN_RATE = "burn_rate", "Burn rate of objectives"


class Duration(models.TextChoices):
    """Durations, as they are measured."""

    TTFT = measures.Measure.TTFT, "Time to first token"
    ADMISSION = measures.Measure.ADMISSION, "Admission"
    QUEUE = measures.Measure.QUEUE, "Queue"
    RETRIEVAL = measures.Measure.RETRIEVAL, "Retrieval"
    PREFILL = measures.Measure.PREFILL, "Prefill"
    GUARD = measures.Measure.GUARD, "Guardrails"
    FLUSH = measures.Measure.FLUSH, "Flush"
    TPOT = measures.Measure.TPOT, "Time per token"
    GAP = measures.Measure.GAP, "Gap between tokens"
    TOTAL = measures.Measure.TOTAL, "Total"


class Happening(models.TextChoices):
    """What is counted beside requests."""

    ERRORS = measures.Tally.ERRORS, "Errors"
    STALLS = measures.Tally.STALLS, "Stalls of clients"
    TIMEOUTS = measures.Tally.TIMEOUTS, "Timeouts"


class FleetFigure(models.TextChoices):
    """What is known of a deployment's workers and queue now."""

    WAITING = "waiting", "Streams in the queue"
    WORKERS_READY = "workers_ready", "Workers that are ready"
    WORKERS_BROKEN = "workers_broken", "Workers that cannot work"
    WORKERS_QUARANTINED = "workers_quarantined", "Workers in quarantine"
    WORKERS_LOST = "workers_lost", "Workers that were lost in the last 10 minutes"
    ENGINE_FAILURES = "engine_failures", "Engines that ended against their workers' will lately"
    BREAKER_OPEN = "breaker_open", "Circuit breaker that is not closed (0 or 1)"
    KV_CACHE_USAGE = "kv_cache_usage", "KV cache in use, fullest worker (0 to 1)"
    MEMORY_USAGE = "memory_usage", "Memory in use, fullest worker's machine (0 to 1)"


class Direction(models.TextChoices):
    """On which side of the threshold it is bad."""

    ABOVE = "above", "above"
    BELOW = "below", "below"


class Severity(models.TextChoices):
    """How much it matters."""

    INFO = "info", "Information"
    WARNING = "warning", "Warning"
    CRITICAL = "critical", "Critical"


class AlertState(models.TextChoices):
    """Where an alert is."""

    PENDING = "pending", "Pending"
    FIRING = "firing", "Firing"
    RESOLVED = "resolved", "Resolved"


class AlertEvent(models.TextChoices):
    """What receivers are told."""

    FIRED = "fired", "Fired"
    RESOLVED = "resolved", "Resolved"
