"""Figures of what heals itself: lost and quarantined workers, engines that ended, circuit breakers."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0016_fleet_costs"),
    ]

    operations = [
        migrations.AlterField(
            model_name="alertrule",
            name="figure",
            field=models.CharField(
                blank=True,
                choices=[
                    ("waiting", "Streams in the queue"),
                    ("workers_ready", "Workers that are ready"),
                    ("workers_broken", "Workers that cannot work"),
                    ("workers_quarantined", "Workers in quarantine"),
                    ("workers_lost", "Workers that were lost in the last 10 minutes"),
                    ("engine_failures", "Engines that ended against their workers' will lately"),
                    ("breaker_open", "Circuit breaker that is not closed (0 or 1)"),
                    ("kv_cache_usage", "KV cache in use, fullest worker (0 to 1)"),
                    ("memory_usage", "Memory in use, fullest worker's machine (0 to 1)"),
                ],
                help_text="Only for the fleet.",
                max_length=24,
            ),
        ),
    ]
