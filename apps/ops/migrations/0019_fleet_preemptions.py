"""How often running requests were preempted, and how full GPUs were."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0018_healing_rules"),
    ]

    operations = [
        migrations.AddField(
            model_name="fleetsample",
            name="gpu_memory_usage_most",
            field=models.FloatField(
                help_text="Share of memory in use of the fullest worker's GPUs, 0 to 1.", null=True
            ),
        ),
        migrations.AddField(
            model_name="fleetsample",
            name="preemptions",
            field=models.FloatField(
                help_text="Running requests a second that lost their KV cache to others and were computed again.",
                null=True,
            ),
        ),
    ]
