"""Model deployments, what their workers say of themselves, and what is laid over their models."""

from apps.deployments.models.adapter import LoraAdapter
from apps.deployments.models.autoscale import AutoscalePolicy, ScalingDecision, ScalingSample
from apps.deployments.models.catalogue import ModelDeployment
from apps.deployments.models.fleet import BreakerStanding, Worker
from apps.deployments.models.restart import RollingRestart

__all__ = [
    "AutoscalePolicy",
    "BreakerStanding",
    "LoraAdapter",
    "ModelDeployment",
    "RollingRestart",
    "ScalingDecision",
    "ScalingSample",
    "Worker",
]
