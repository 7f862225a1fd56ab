"""Which deployments load and warm up first."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0011_self_healing"),
    ]

    operations = [
        migrations.AddField(
            model_name="modeldeployment",
            name="preload_priority",
            field=models.PositiveSmallIntegerField(
                default=100,
                help_text="Where workers of several deployments start or wake on one machine, the smallest number loads and warms up first, and larger ones wait for it, ten minutes at most. The same number: at the same time. 0 to 1000.",
                validators=[django.core.validators.MaxValueValidator(1000)],
                verbose_name="preload order",
            ),
        ),
    ]
