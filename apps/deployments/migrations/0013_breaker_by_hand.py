"""A circuit breaker can be opened by hand."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0012_preload_order"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="breakerstanding", name="breaker_reason_known"),
        migrations.AlterField(
            model_name="breakerstanding",
            name="reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("errors", "Workers failed too many answers"),
                    ("absent", "No worker was there"),
                    ("hand", "Opened by hand"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="breakerstanding",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason__in", ["", "errors", "absent", "hand"])), name="breaker_reason_known"
            ),
        ),
    ]
