"""Circuit breakers of deployments with their fallbacks, and what workers say of engines that ended."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0010_operating_costs"),
    ]

    operations = [
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_absent_seconds",
            field=models.FloatField(
                default=30.0,
                help_text="Opens it too, once somebody has asked. Longer than a model takes to wake up. 0: does not.",
                validators=[
                    django.core.validators.MinValueValidator(0.0),
                    django.core.validators.MaxValueValidator(3600.0),
                ],
                verbose_name="no worker for (s)",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_error_share",
            field=models.FloatField(
                default=0.5,
                help_text="0 to 1. With so many of the answers failed by workers it opens.",
                validators=[
                    django.core.validators.MinValueValidator(0.01),
                    django.core.validators.MaxValueValidator(1.0),
                ],
                verbose_name="share of failures",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_min_ends",
            field=models.PositiveIntegerField(
                default=20,
                help_text="With fewer that ended in the time beside it does not open.",
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(100000),
                ],
                verbose_name="of at least (answers)",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_open_seconds",
            field=models.FloatField(
                default=30.0,
                help_text="Then some requests try it. Twice as long after each time that they fail, up to eight times.",
                validators=[
                    django.core.validators.MinValueValidator(1.0),
                    django.core.validators.MaxValueValidator(3600.0),
                ],
                verbose_name="open for (s)",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_probes",
            field=models.PositiveIntegerField(
                default=3,
                help_text="When so many have finished it is closed.",
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000),
                ],
                verbose_name="tried with (requests)",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="breaker_window_seconds",
            field=models.FloatField(
                default=60.0,
                validators=[
                    django.core.validators.MinValueValidator(6.0),
                    django.core.validators.MaxValueValidator(3600.0),
                ],
                verbose_name="in the last (s)",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="fallback",
            field=models.ForeignKey(
                blank=True,
                help_text="Takes the requests while the breaker is open, under its own limits, prices and guardrails, of those who may use it. Its own fallback is not asked. Empty: they are refused (503) with a time to come again.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="stands_in_for",
                to="deployments.modeldeployment",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="is_breaker_on",
            field=models.BooleanField(
                default=False,
                help_text="Takes no requests for a while when workers fail too many or none is there: the fallback does.",
                verbose_name="circuit breaker",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="engine_failures",
            field=models.PositiveIntegerField(
                default=0, help_text="Engines that ended against its will in the last quarter of an hour."
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="quarantined_at",
            field=models.DateTimeField(
                blank=True, help_text="Since when it starts no engine, because too many have ended.", null=True
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("fallback__isnull", True),
                    models.Q(("fallback", models.F("id")), _negated=True),
                    _connector="OR",
                ),
                name="deployment_is_not_its_own_fallback",
                violation_error_message="A deployment cannot stand in for itself.",
            ),
        ),
        migrations.CreateModel(
            name="BreakerStanding",
            fields=[
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="breaker_standing",
                        serialize=False,
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("closed", "Closed"), ("open", "Open"), ("half_open", "Half open")],
                        default="closed",
                        max_length=16,
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        choices=[("errors", "Workers failed too many answers"), ("absent", "No worker was there")],
                        max_length=16,
                    ),
                ),
                ("since", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "circuit breaker",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["closed", "open", "half_open"])),
                        name="breaker_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reason__in", ["", "errors", "absent"])), name="breaker_reason_known"
                    ),
                ],
            },
        ),
    ]
