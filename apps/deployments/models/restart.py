"""Restarts of a deployment's workers, one after another."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.deployments.restarts.enums import RestartState


class RollingRestart(models.Model):
    """Brings workers to the deployment's present options: one drains and ends, its successor gets ready, then the next.

    What is to be done next is read from this row and from what workers say of themselves, so that the process that
    does it can end at any moment.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    deployment = models.ForeignKey(
        "deployments.ModelDeployment", on_delete=models.CASCADE, related_name="restarts", editable=False
    )
    state = models.CharField(max_length=16, choices=RestartState, default=RestartState.RUNNING, editable=False)
    reason = models.TextField(blank=True, editable=False, help_text=_("Why it stopped."))
    options = models.CharField(
        max_length=64, blank=True, editable=False, help_text=_("Fingerprint of the options at its beginning.")
    )
    size = models.PositiveIntegerField(_("workers"), default=0, editable=False, help_text=_("Ready at its beginning."))
    restarted = models.PositiveIntegerField(default=0, editable=False)
    current = models.CharField(
        _("restarts now"), max_length=64, blank=True, editable=False, help_text=_("The worker that ends.")
    )
    current_since = models.DateTimeField(null=True, blank=True, editable=False)
    known = models.JSONField(
        default=list, editable=False, help_text=_("Processes that were there before, the one that ends first.")
    )
    started_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-started_at"]
        verbose_name = _("restart")
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=Q(state=RestartState.RUNNING), name="restart_one_at_a_time"
            ),
            models.CheckConstraint(condition=Q(state__in=RestartState.values), name="restart_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment}, {self.started_at:%Y-%m-%d %H:%M}"
