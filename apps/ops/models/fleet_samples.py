"""What workers and queues looked like over time."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.ops.enums import FleetSpan
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH


class FleetSample(models.Model):
    """Means over one span, of one worker, or of a deployment's queue and all its workers together.

    Counts of streams and bytes of a deployment are sums over its workers, shares and clocks means. Of a minute there
    are some six samples; hours are means of minutes. What no sample had is null.
    """

    span = models.CharField(max_length=8, choices=FleetSpan)
    at = models.DateTimeField(help_text=_("Beginning of the span, UTC."))
    deployment = models.CharField(max_length=LABEL_LENGTH)
    worker = models.CharField(max_length=REF_LENGTH, blank=True, help_text=_("Empty: the deployment."))
    workers = models.FloatField(default=0.0, help_text=_("Ready workers."))
    registered = models.FloatField(
        null=True,
        help_text=_("Workers that were there, ready or not. Of a worker the share of the span in which it was."),
    )
    running = models.FloatField(default=0.0)
    held = models.FloatField(default=0.0, help_text=_("Out of credit: their readers do not come on."))
    suspended = models.FloatField(default=0.0, help_text=_("Of the deployment only."))
    spilled = models.FloatField(default=0.0, help_text=_("Held ones that lost their KV cache to others."))
    waiting = models.FloatField(default=0.0, help_text=_("Streams in the deployment's queue."))
    waiting_most = models.FloatField(default=0.0)
    kv_cache_usage = models.FloatField(default=0.0, help_text=_("Share in use, 0 to 1."))
    kv_cache_usage_most = models.FloatField(default=0.0)
    tokens = models.FloatField(default=0.0, help_text=_("Generated per second."))
    prefix_hit_rate = models.FloatField(null=True, help_text=_("Share of prompt tokens found in the prefix cache."))
    rss_bytes = models.FloatField(null=True, help_text=_("Memory of the worker's processes."))
    gpu_utilization = models.FloatField(null=True, help_text=_("Share of time in which a kernel ran, 0 to 1."))
    gpu_bandwidth = models.FloatField(null=True, help_text=_("Share of time in which memory was read or written."))
    gpu_memory_bytes = models.FloatField(null=True)
    gpu_clock_mhz = models.FloatField(null=True)
    gpu_power_watts = models.FloatField(null=True)
    batch_limit = models.FloatField(null=True, help_text=_("Streams that may run at once on a worker."))
    batch_classic = models.FloatField(null=True, help_text=_("What the classic rule of the dynamic batch would let."))
    batch_objectives = models.FloatField(null=True, help_text=_("What the rule by objectives would let."))
    preemptions = models.FloatField(
        null=True, help_text=_("Running requests a second that lost their KV cache to others and were computed again.")
    )
    gpu_memory_usage_most = models.FloatField(
        null=True, help_text=_("Share of memory in use of the fullest worker's GPUs, 0 to 1.")
    )

    class Meta:
        ordering = ["at"]
        verbose_name = _("fleet sample")
        constraints = [
            models.UniqueConstraint(fields=["span", "worker", "deployment", "at"], name="ops_fleetsample_once"),
            models.CheckConstraint(condition=Q(span__in=FleetSpan.values), name="ops_fleetsample_span_known"),
        ]
        indexes = [models.Index(fields=["span", "at"], name="ops_fleetsample_at")]

    def __str__(self) -> str:
        return f"{self.worker or self.deployment} {self.at:%Y-%m-%d %H:%M}"
