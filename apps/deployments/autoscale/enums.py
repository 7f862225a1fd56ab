"""Choices of policies and decisions."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from apps.deployments.autoscale import terms


class AutoscaleMode(models.TextChoices):
    """What becomes of decisions."""

    OFF = "off", _("Off: only measured")
    SHADOW = "shadow", _("Shadow: decided and recorded, not done")
    ON = "on", _("On: decided and done")


class ExecutorKind(models.TextChoices):
    """Who starts and ends workers."""

    SUPERVISOR = "supervisor", _("The supervisor of make up, on this machine")
    KUBERNETES = "kubernetes", _("Kubernetes: a Deployment or StatefulSet")
    SYSTEMD = "systemd", _("systemd: a template unit on this machine")
    RECOMMEND = "recommend", _("Nobody: decisions are recommendations")


class WorkloadKind(models.TextChoices):
    """What Kubernetes runs the workers as."""

    DEPLOYMENT = "deployment", "Deployment"
    STATEFUL_SET = "stateful_set", "StatefulSet"


class Rule(models.TextChoices):
    """What a decision follows from."""

    MINIMUM = terms.Rule.MINIMUM, _("below the fewest")
    MAXIMUM = terms.Rule.MAXIMUM, _("above the most")
    SCHEDULE = terms.Rule.SCHEDULE, _("schedule")
    WAKE_UP = terms.Rule.WAKE_UP, _("wake-up")
    SCALE_OUT = terms.Rule.SCALE_OUT, _("scale out")
    SCALE_IN = terms.Rule.SCALE_IN, _("scale in")
    IDLE = terms.Rule.IDLE, _("idle")
    COOLDOWN = terms.Rule.COOLDOWN, _("cooldown")
    STARTING = terms.Rule.STARTING, _("workers are starting")
    KEEP = terms.Rule.KEEP, _("keep")


class DecisionResult(models.TextChoices):
    """What became of a decision."""

    DECIDED = "decided", _("Under way")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")
    EXPIRED = "expired", _("Expired")
    WITHDRAWN = "withdrawn", _("Withdrawn")
    SHADOW = "shadow", _("Shadow")
    RECOMMENDED = "recommended", _("Recommended")
