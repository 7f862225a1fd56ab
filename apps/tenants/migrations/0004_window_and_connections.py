"""A smaller window by default, and a limit of connections."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_plan_webhook")]

    operations = [
        migrations.AlterField(
            model_name="tenant",
            name="stream_window",
            field=models.PositiveIntegerField(
                default=256,
                help_text="Tokens that the engine may be ahead of what a client took. Smaller saves GPU time on slow clients.",
                validators=[
                    django.core.validators.MinValueValidator(8),
                    django.core.validators.MaxValueValidator(65536),
                ],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="max_connections",
            field=models.PositiveIntegerField(
                default=1024,
                help_text="Connections that its clients may have open at one gateway; more are refused with 429.",
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1000000),
                ],
            ),
        ),
    ]
