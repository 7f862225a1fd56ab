"""Service level objectives."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.ops.objectives.enums import Indicator


class ServiceObjective(models.Model):
    """So many of a deployment's requests are to be good, over so many days.

    “p95 within 0.5 s” and “95 % of requests within 0.5 s” say the same: `target_percent` is the percentile.
    """

    deployment = models.ForeignKey(ModelDeployment, on_delete=models.CASCADE, related_name="objectives")
    indicator = models.CharField(max_length=16, choices=Indicator, default=Indicator.TTFT)
    goal_seconds = models.FloatField(
        _("goal (s)"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0001), MaxValueValidator(3600.0)],
        help_text=_("A request is good when it took no longer. Empty for errors."),
    )
    target_percent = models.FloatField(
        _("good requests (%)"),
        default=95.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(99.999)],
        help_text=_("So many are to be good; the percentile that meets the goal. The rest is the error budget."),
    )
    window_days = models.PositiveSmallIntegerField(
        _("over (days)"),
        default=30,
        validators=[MinValueValidator(1), MaxValueValidator(90)],
        help_text=_("The error budget is for so many days up to now."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["deployment__name", "indicator", "target_percent"]
        verbose_name = _("objective")
        constraints = [
            models.UniqueConstraint(
                fields=["deployment", "indicator", "target_percent"],
                name="objective_once",
                violation_error_message=_("There is one for this percentile."),
            ),
            models.CheckConstraint(condition=Q(indicator__in=Indicator.values), name="objective_indicator_known"),
            models.CheckConstraint(
                condition=Q(target_percent__gte=1.0, target_percent__lt=100.0), name="objective_leaves_a_budget"
            ),
            models.CheckConstraint(condition=Q(window_days__range=(1, 90)), name="objective_window_is_kept"),
            models.CheckConstraint(
                condition=Q(indicator=Indicator.ERRORS, goal_seconds__isnull=True)
                | (~Q(indicator=Indicator.ERRORS) & Q(goal_seconds__isnull=False, goal_seconds__gt=0)),
                name="objective_durations_have_goals",
                violation_error_message=_("A duration needs a goal in seconds; errors have none."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.deployment}: {self.says}"

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: A duration without a goal.
        """
        if self.indicator == Indicator.ERRORS:
            self.goal_seconds = None
        elif self.goal_seconds is None:
            raise ValidationError({"goal_seconds": _("A duration needs a goal.")}, code="goal_missing")

    @property
    def says(self) -> str:
        """Returns it as a sentence's part, without the deployment."""
        share = f"{self.target_percent:g} %"
        if self.goal_seconds is None:
            return f"{share} without an error, {self.window_days} d"
        return f"{share} {self.get_indicator_display()} ≤ {self.goal_seconds:g} s, {self.window_days} d"

    @property
    def budget_share(self) -> float:
        """The share of requests that may be bad."""
        return 1 - self.target_percent / 100
