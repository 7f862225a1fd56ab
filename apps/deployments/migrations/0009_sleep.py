"""When engines that nobody uses are ended, and the state of workers whose engine was."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0008_dynamic_batch"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="worker",
            name="worker_state_known",
        ),
        migrations.RemoveConstraint(
            model_name="worker",
            name="worker_of_the_past_has_an_end",
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="sleep_after_seconds",
            field=models.PositiveIntegerField(
                default=0,
                help_text="A worker whose engine nobody has used for so long ends it, which frees its memory, and starts it again for the next request: that one waits for the start. Never while a stream runs. 0: never.",
                validators=[django.core.validators.MaxValueValidator(2592000)],
                verbose_name="sleep after (s)",
            ),
        ),
        migrations.AlterField(
            model_name="worker",
            name="state",
            field=models.CharField(
                choices=[
                    ("loading", "Loading"),
                    ("ready", "Ready"),
                    ("draining", "Draining"),
                    ("broken", "Broken"),
                    ("sleeping", "Sleeping"),
                    ("ended", "Ended"),
                    ("lost", "Lost"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state__in", ["loading", "ready", "draining", "broken", "sleeping", "ended", "lost"])
                ),
                name="worker_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("ended_at__isnull", True),
                        ("state__in", ["loading", "ready", "draining", "broken", "sleeping"]),
                    ),
                    models.Q(("ended_at__isnull", False), ("state__in", ["ended", "lost"])),
                    _connector="OR",
                ),
                name="worker_of_the_past_has_an_end",
            ),
        ),
    ]
