"""How long a worker may be idle before it is warmed up."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0004_drafts"),
    ]

    operations = [
        migrations.AddField(
            model_name="modeldeployment",
            name="warm_up_seconds",
            field=models.PositiveIntegerField(
                default=300,
                help_text="A worker that has generated nothing for so long makes a plain, a JSON and a long inference, so that the next request finds it warm. 0: never.",
                validators=[django.core.validators.MaxValueValidator(86400)],
                verbose_name="warm up after (s)",
            ),
        ),
    ]
