"""What workers say of themselves, and what gateways say of deployments' circuit breakers."""

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.deployments.enums import BreakerReason, BreakerState, EngineKind, WorkerState
from apps.deployments.models.catalogue import ModelDeployment

_PAST_STATES = [WorkerState.ENDED, WorkerState.LOST]
_LIVE_STATES = [state for state in WorkerState if state not in _PAST_STATES]


class Worker(models.Model):
    """One life of a worker process, mirrored from its registration in Redis. Nobody edits it."""

    incarnation = models.CharField(max_length=64, primary_key=True)
    deployment = models.ForeignKey(
        ModelDeployment, on_delete=models.SET_NULL, null=True, blank=True, related_name="workers"
    )
    deployment_name = models.CharField(max_length=128, help_text=_("What it was started for."))
    engine = models.CharField(max_length=16, choices=EngineKind)
    state = models.CharField(max_length=16, choices=WorkerState)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    model = models.CharField(max_length=500, blank=True)
    fingerprint = models.CharField(max_length=128, blank=True)
    max_model_len = models.PositiveIntegerField(default=0)
    max_num_seqs = models.PositiveIntegerField(default=0)
    num_requests_running = models.PositiveIntegerField(_("running"), default=0)
    num_requests_waiting = models.PositiveIntegerField(_("waiting"), default=0)
    kv_cache_usage = models.FloatField(_("KV cache"), default=0.0, help_text=_("Share in use, 0 to 1."))
    tokens_generated = models.PositiveBigIntegerField(default=0)
    cold_start_seconds = models.FloatField(default=0.0)
    options = models.CharField(
        max_length=64, blank=True, help_text=_("Fingerprint of the engine options that it runs.")
    )
    adapters = models.JSONField(default=dict, blank=True, help_text=_("LoRA adapters that it was told of, by id."))
    last_error = models.TextField(blank=True)
    engine_failures = models.PositiveIntegerField(
        default=0, help_text=_("Engines that ended against its will in the last quarter of an hour.")
    )
    quarantined_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Since when it starts no engine, because too many have ended.")
    )
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text=_("When it was seen to be gone."))

    class Meta:
        ordering = [F("ended_at").desc(nulls_first=True), "deployment_name", "-started_at"]
        indexes = [models.Index(fields=["state", "deployment_name"], name="worker_by_state")]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=WorkerState.values), name="worker_state_known"),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, state__in=_LIVE_STATES)
                | Q(ended_at__isnull=False, state__in=_PAST_STATES),
                name="worker_of_the_past_has_an_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_name} on {self.host} ({self.pid})"


class BreakerStanding(models.Model):
    """Where a deployment's circuit breaker stands, mirrored from Redis. Nobody edits it."""

    deployment = models.OneToOneField(
        ModelDeployment, on_delete=models.CASCADE, primary_key=True, related_name="breaker_standing"
    )
    state = models.CharField(max_length=16, choices=BreakerState, default=BreakerState.CLOSED)
    reason = models.CharField(max_length=16, choices=BreakerReason, blank=True)
    since = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("circuit breaker")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=Q(state__in=BreakerState.values), name="breaker_state_known"),
            models.CheckConstraint(condition=Q(reason__in=["", *BreakerReason.values]), name="breaker_reason_known"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment}: {self.get_state_display()}"
