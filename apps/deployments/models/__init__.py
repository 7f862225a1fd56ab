"""Model deployments, what their workers say of themselves, and what is laid over their models."""

from apps.deployments.models.adapter import LoraAdapter
from apps.deployments.models.autoscale import AutoscalePolicy, ScalingDecision, ScalingSample
from apps.deployments.models.catalogue import ModelDeployment, Worker
from apps.deployments.models.restart import RollingRestart

__all__ = [
    "AutoscalePolicy",
    "LoraAdapter",
    "ModelDeployment",
    "RollingRestart",
    "ScalingDecision",
    "ScalingSample",
    "Worker",
]
