"""Policies, what was measured for them, and what was decided."""

import uuid
import zoneinfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.deployments.autoscale.enums import AutoscaleMode, DecisionResult, ExecutorKind, Rule, WorkloadKind
from apps.deployments.autoscale.schedule_text import ScheduleError, schedule_parse
from apps.deployments.autoscale.terms import PolicyTerms

_COUNT = (MaxValueValidator(1000),)
_STEP = (MinValueValidator(1), MaxValueValidator(100))
_PERCENT = (MinValueValidator(1), MaxValueValidator(100))
_SECONDS = (MinValueValidator(1.0), MaxValueValidator(86_400.0))
_SECONDS_OR_NONE = (MinValueValidator(0.0), MaxValueValidator(86_400.0))
_NAME = (RegexValidator(r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z", _("Letters, digits and . _ - only.")),)

MOST_WINDOWS = 100
"""Of a schedule."""
LEAST_GOAL = 0.001
"""Seconds, or requests a second."""
_GOALS = ("queue_goal_seconds", "ttft_goal_seconds", "worker_requests_per_second")


class AutoscalePolicy(ExportModelOperationsMixin("autoscale_policy"), models.Model):  # type: ignore[misc]
    """When a deployment gets more or fewer workers, and who starts and ends them."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    deployment = models.OneToOneField(
        "deployments.ModelDeployment", on_delete=models.CASCADE, related_name="autoscale_policy"
    )
    mode = models.CharField(
        max_length=16,
        choices=AutoscaleMode,
        default=AutoscaleMode.SHADOW,
        help_text=_("Begin with shadow: decisions are recorded with their reasons, and nothing is done."),
    )
    min_workers = models.PositiveIntegerField(
        _("fewest workers"),
        default=1,
        validators=_COUNT,
        help_text=_("0: none runs while nobody asks; the first request starts one and waits for it."),
    )
    max_workers = models.PositiveIntegerField(
        _("most workers"), default=4, validators=[MinValueValidator(1), *_COUNT], help_text=_("Never more than these.")
    )
    scale_out_percent = models.PositiveIntegerField(
        _("out above (%)"),
        default=80,
        validators=_PERCENT,
        help_text=_(
            "The highest share counts: requests of what workers serve, waits and first tokens of their goals, KV."
        ),
    )
    scale_out_seconds = models.FloatField(_("for (s)"), default=300.0, validators=_SECONDS)
    scale_out_step = models.PositiveIntegerField(_("by"), default=2, validators=_STEP)
    scale_in_percent = models.PositiveIntegerField(
        _("in below (%)"),
        default=30,
        validators=_PERCENT,
        help_text=_("And only where the load would stay below the upper threshold with fewer workers."),
    )
    scale_in_seconds = models.FloatField(_("for (s)"), default=1800.0, validators=_SECONDS)
    scale_in_step = models.PositiveIntegerField(_("by"), default=1, validators=_STEP)
    cooldown_seconds = models.FloatField(
        _("cooldown (s)"), default=300.0, validators=_SECONDS_OR_NONE, help_text=_("After each change by load.")
    )
    start_seconds = models.FloatField(
        _("longest start (s)"),
        default=600.0,
        validators=_SECONDS,
        help_text=_("While workers that were asked for are not ready yet, and no longer than this, no more are."),
    )
    idle_seconds = models.FloatField(
        _("to none after (s)"),
        default=900.0,
        validators=_SECONDS,
        help_text=_("Only where the fewest is 0: so long without a request until the last worker ends."),
    )
    drain_seconds = models.FloatField(
        _("drain (s)"),
        default=120.0,
        validators=_SECONDS,
        help_text=_("Answers of a worker that is to end may go on so long; what is left then moves to other workers."),
    )
    queue_goal_seconds = models.FloatField(
        _("longest wait, p95 (s)"),
        default=2.0,
        validators=_SECONDS_OR_NONE,
        help_text=_("A wait in the queue that counts as full load. 0: does not count."),
    )
    ttft_goal_seconds = models.FloatField(
        _("first token, p95 (s)"),
        default=0.0,
        validators=_SECONDS_OR_NONE,
        help_text=_("A time to the first token that counts as full load. It never keeps workers. 0: does not count."),
    )
    worker_requests_per_second = models.FloatField(
        _("requests/s of one worker"),
        default=0.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1e6)],
        help_text=_("0: as measured while requests waited. Places that are taken count beside it."),
    )
    time_zone = models.CharField(
        max_length=64, default="UTC", help_text=_("Clock of the schedule, e.g. Europe/Zurich.")
    )
    schedule = models.TextField(
        blank=True,
        help_text=_(
            "One window a line; the first that holds counts. “reserve 20 mon-fri 08:00-18:00” keeps 20 % more;"
            " “release 50 daily 22:00-06:00” takes half of the fewest and of the most away."
        ),
    )
    executor = models.CharField(
        max_length=16,
        choices=ExecutorKind,
        default=ExecutorKind.SUPERVISOR,
        help_text=_("Who starts and ends the workers."),
    )
    workload = models.CharField(
        max_length=253,
        blank=True,
        validators=_NAME,
        help_text=_(
            "Kubernetes: name of the workload. systemd: name of the template, “headrace-worker” for"
            " headrace-worker@.service."
        ),
    )
    workload_kind = models.CharField(
        max_length=16, choices=WorkloadKind, default=WorkloadKind.DEPLOYMENT, help_text=_("Kubernetes only.")
    )
    namespace = models.CharField(
        max_length=63, blank=True, default="default", validators=_NAME, help_text=_("Kubernetes only.")
    )
    last_error = models.TextField(blank=True, editable=False)
    last_error_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["deployment__name"]
        verbose_name = _("autoscale policy")
        verbose_name_plural = _("autoscale policies")
        constraints = [
            models.CheckConstraint(condition=Q(mode__in=AutoscaleMode.values), name="autoscale_mode_known"),
            models.CheckConstraint(condition=Q(executor__in=ExecutorKind.values), name="autoscale_executor_known"),
            models.CheckConstraint(
                condition=Q(max_workers__gte=1) & Q(max_workers__gte=F("min_workers")),
                name="autoscale_bounds_in_order",
                violation_error_message=_("The most workers are fewer than the fewest."),
            ),
            models.CheckConstraint(
                condition=Q(scale_in_percent__lt=F("scale_out_percent")),
                name="autoscale_thresholds_in_order",
                violation_error_message=_("The threshold for fewer workers must be below the one for more."),
            ),
        ]

    def __str__(self) -> str:
        return str(self.deployment)

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: No such time zone, a schedule that is unreadable or too long, a goal that every load is
                far above, or a workload without a name.
        """
        if self.time_zone not in zoneinfo.available_timezones():
            raise ValidationError({"time_zone": _("There is no such time zone.")}, code="time_zone")
        try:
            windows = schedule_parse(self.schedule)
        except ScheduleError as error:
            raise ValidationError({"schedule": str(error)}, code="schedule") from error
        if len(windows) > MOST_WINDOWS:
            told = _("%(most)d windows at most; these are %(count)d.") % {"most": MOST_WINDOWS, "count": len(windows)}
            raise ValidationError({"schedule": told}, code="schedule")
        self._check_goals()
        if self.executor in {ExecutorKind.KUBERNETES, ExecutorKind.SYSTEMD} and not self.workload:
            raise ValidationError({"workload": _("This executor needs its name.")}, code="workload")
        if self.executor == ExecutorKind.KUBERNETES and not self.namespace:
            raise ValidationError({"namespace": _("Kubernetes needs it.")}, code="namespace")

    def _check_goals(self) -> None:
        """Refuses what is as good as nothing and does not mean none: loads are divided by it."""
        tiny = [name for name in _GOALS if 0 < (getattr(self, name) or 0) < LEAST_GOAL]
        if tiny:
            told = _("0 for none, or %s at least.") % LEAST_GOAL
            raise ValidationError(dict.fromkeys(tiny, told), code="goal")

    @property
    def terms(self) -> PolicyTerms:
        """What decisions go by."""
        same = {name: getattr(self, name) for name in _SAME_IN_TERMS}
        return PolicyTerms(
            scale_out_share=self.scale_out_percent / 100,
            scale_in_share=self.scale_in_percent / 100,
            windows=schedule_parse(self.schedule),
            tick_seconds=settings.HEADRACE_AUTOSCALE_SECONDS,
            **same,
        )


_SAME_IN_TERMS = (
    "min_workers",
    "max_workers",
    "scale_out_seconds",
    "scale_out_step",
    "scale_in_seconds",
    "scale_in_step",
    "cooldown_seconds",
    "start_seconds",
    "idle_seconds",
    "queue_goal_seconds",
    "ttft_goal_seconds",
    "worker_requests_per_second",
    "time_zone",
)


class ScalingSample(models.Model):
    """What was measured of a deployment at one tick, and what that led to. One a tick, whoever beats."""

    deployment = models.ForeignKey(
        "deployments.ModelDeployment", on_delete=models.CASCADE, related_name="scaling_samples"
    )
    at = models.DateTimeField(help_text=_("Beginning of the tick."))
    workers = models.PositiveIntegerField(default=0)
    sleeping = models.PositiveIntegerField(default=0)
    ready = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    waiting = models.PositiveIntegerField(default=0)
    places = models.PositiveIntegerField(default=0)
    claims = models.BigIntegerField(null=True, help_text=_("Claims ever counted; their growth is the pace."))
    requests_per_second = models.FloatField(null=True)
    worker_capacity = models.FloatField(null=True)
    queue_p95 = models.FloatField(null=True)
    ttft_p95 = models.FloatField(null=True)
    kv_usage = models.FloatField(null=True)
    target = models.PositiveIntegerField(null=True)
    rule = models.CharField(max_length=16, choices=Rule, blank=True)
    reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-at"]
        constraints = [models.UniqueConstraint(fields=["deployment", "at"], name="one_scaling_sample_a_tick")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"


class ScalingDecision(models.Model):
    """A decision that changes something, with all that led to it and what became of it. Nobody edits it."""

    deployment = models.ForeignKey(
        "deployments.ModelDeployment", on_delete=models.CASCADE, related_name="scaling_decisions"
    )
    at = models.DateTimeField(_("decided at"), help_text=_("Beginning of its tick."))
    mode = models.CharField(max_length=16, choices=AutoscaleMode)
    executor = models.CharField(max_length=16, choices=ExecutorKind)
    before = models.PositiveIntegerField(help_text=_("Workers until then."))
    target = models.PositiveIntegerField(help_text=_("Workers wanted."))
    rule = models.CharField(max_length=16, choices=Rule)
    reason = models.CharField(max_length=300)
    inputs = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    result = models.CharField(max_length=16, choices=DecisionResult, default=DecisionResult.DECIDED)
    result_text = models.TextField(blank=True, help_text=_("What the executor said."))
    victims = models.JSONField(default=list, help_text=_("Workers that drain, and end then."))
    drain_until = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True, help_text=_("Until then one process carries it out."))
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-at", "-pk"]
        verbose_name = _("scaling decision")
        constraints = [
            models.UniqueConstraint(fields=["deployment", "at"], name="one_scaling_decision_a_tick"),
            models.UniqueConstraint(
                fields=["deployment"], condition=Q(result="decided"), name="one_scaling_decision_under_way"
            ),
            models.CheckConstraint(condition=Q(result__in=DecisionResult.values), name="scaling_result_known"),
        ]

    def __str__(self) -> str:
        return f"{self.before} → {self.target}"
