"""Refuses objectives of durations without a goal, and says of which memory an alert rule speaks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0007_adapters_restarts"),
        ("ops", "0013_restart_schedule"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="serviceobjective",
            name="objective_durations_have_goals",
        ),
        migrations.AlterField(
            model_name="alertrule",
            name="figure",
            field=models.CharField(
                blank=True,
                choices=[
                    ("waiting", "Streams in the queue"),
                    ("workers_ready", "Workers that are ready"),
                    ("workers_broken", "Workers that cannot work"),
                    ("kv_cache_usage", "KV cache in use, fullest worker (0 to 1)"),
                    ("memory_usage", "Memory in use, fullest worker's machine (0 to 1)"),
                ],
                help_text="Only for the fleet.",
                max_length=24,
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("goal_seconds__isnull", True), ("indicator", "errors")),
                    models.Q(
                        models.Q(("indicator", "errors"), _negated=True),
                        ("goal_seconds__gt", 0),
                        ("goal_seconds__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="objective_durations_have_goals",
                violation_error_message="A duration needs a goal in seconds; errors have none.",
            ),
        ),
    ]
