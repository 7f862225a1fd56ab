"""Reads of samples and decisions."""

from datetime import timedelta

from django.utils import timezone

from apps.deployments.autoscale.terms import Sample
from apps.deployments.autoscale.tick import sample_of
from apps.deployments.models import AutoscalePolicy, ScalingDecision, ScalingSample


def samples_recorded(*, policy: AutoscalePolicy, hours: int) -> list[Sample]:
    """Returns the samples of the last `hours` of a policy's deployment, in order."""
    since = timezone.now() - timedelta(hours=hours)
    rows = ScalingSample.objects.filter(deployment=policy.deployment_id, at__gte=since).order_by("at")
    return [sample_of(row) for row in rows]


def sample_latest(*, policy: AutoscalePolicy) -> ScalingSample | None:
    """Returns what was measured and thought last."""
    return ScalingSample.objects.filter(deployment=policy.deployment_id).order_by("-at").first()


def decisions_latest(*, policy: AutoscalePolicy, count: int) -> list[ScalingDecision]:
    """Returns the last decisions, the newest first."""
    rows = ScalingDecision.objects.filter(deployment=policy.deployment_id)
    return list(rows.order_by("-at", "-pk")[:count])
