"""Workers that sleep are told apart from those that run."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0013_breaker_by_hand"),
    ]

    operations = [
        migrations.AddField(
            model_name="scalingsample",
            name="sleeping",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
