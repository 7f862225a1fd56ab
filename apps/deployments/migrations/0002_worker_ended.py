from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0001_deployments_workers"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="worker",
            name="worker_state_known",
        ),
        migrations.RemoveConstraint(
            model_name="worker",
            name="worker_lost_has_an_end",
        ),
        migrations.AlterField(
            model_name="worker",
            name="ended_at",
            field=models.DateTimeField(blank=True, help_text="When it was seen to be gone.", null=True),
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
                    ("ended", "Ended"),
                    ("lost", "Lost"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["loading", "ready", "draining", "broken", "ended", "lost"])),
                name="worker_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("ended_at__isnull", True), ("state__in", ["loading", "ready", "draining", "broken"])),
                    models.Q(("ended_at__isnull", False), ("state__in", ["ended", "lost"])),
                    _connector="OR",
                ),
                name="worker_of_the_past_has_an_end",
            ),
        ),
    ]
