"""Model deployments, what their workers say of themselves, and what is laid over their models."""

from apps.deployments.models.autoscale import AutoscalePolicy, ScalingDecision, ScalingSample
from apps.deployments.models.catalogue import ModelDeployment, Worker

__all__ = ["AutoscalePolicy", "ModelDeployment", "ScalingDecision", "ScalingSample", "Worker"]
