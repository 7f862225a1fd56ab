"""What streams took, summed up by span of time and by whose they were. The roll-up writes; nobody edits."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.ops.enums import LatencyLevel, LatencyTier
from apps.tenants.references import LABEL_LENGTH, REF_LENGTH


class LatencyRow(models.Model):
    """All that one span has of one level and combination: replaced as a whole, so that it may be computed again."""

    at = models.DateTimeField(help_text=_("Beginning of the span, UTC."))
    level = models.CharField(max_length=16, choices=LatencyLevel)
    tenant_ref = models.CharField(_("tenant's id"), max_length=REF_LENGTH, blank=True)
    worker = models.CharField(max_length=REF_LENGTH, blank=True)
    api_key_ref = models.CharField(_("API key's id"), max_length=REF_LENGTH, blank=True)
    deployment = models.CharField(max_length=LABEL_LENGTH, blank=True)
    packed = models.BinaryField(help_text=_("A packed headrace_wire.latency.summary.Summary."))

    class Meta:
        abstract = True
        ordering = ["at"]
        # Whatever is asked for names the level and then the fields from the left that it tells apart.
        constraints = [
            models.UniqueConstraint(
                fields=["level", "tenant_ref", "worker", "api_key_ref", "deployment", "at"], name="ops_%(class)s_once"
            ),
            models.CheckConstraint(condition=Q(level__in=LatencyLevel.values), name="ops_%(class)s_level_known"),
        ]
        indexes = [
            models.Index(fields=["at"], name="ops_%(class)s_at"),
            models.Index(fields=["api_key_ref", "at"], name="ops_%(class)s_key", condition=~Q(api_key_ref="")),
        ]

    def __str__(self) -> str:
        return f"{self.level} {self.at:%Y-%m-%d %H:%M}"


class LatencyMinute(LatencyRow):
    """One minute; kept for two days."""

    class Meta(LatencyRow.Meta):
        verbose_name = _("latencies of a minute")
        verbose_name_plural = _("latencies by minute")


class LatencyTenMinutes(LatencyRow):
    """Ten minutes; kept for three days."""

    class Meta(LatencyRow.Meta):
        verbose_name = _("latencies of ten minutes")
        verbose_name_plural = _("latencies by ten minutes")


class LatencyHour(LatencyRow):
    """One hour; kept for 90 days."""

    class Meta(LatencyRow.Meta):
        verbose_name = _("latencies of an hour")
        verbose_name_plural = _("latencies by hour")


class LatencyDay(LatencyRow):
    """One day of UTC; kept for 200 days, so that 90 can be compared with the 90 before."""

    class Meta(LatencyRow.Meta):
        verbose_name = _("latencies of a day")
        verbose_name_plural = _("latencies by day")


class LatencyMark(models.Model):
    """How far a tier is: what is newer has to be read from the one below, or from Redis."""

    tier = models.CharField(max_length=16, choices=LatencyTier, unique=True)
    until = models.DateTimeField(help_text=_("All spans that end by then are there."))

    class Meta:
        ordering = ["tier"]
        constraints = [
            models.CheckConstraint(condition=Q(tier__in=LatencyTier.values), name="ops_latencymark_tier_known")
        ]

    def __str__(self) -> str:
        return f"{self.tier} {self.until:%Y-%m-%d %H:%M}"
