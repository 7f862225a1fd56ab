"""How long workers were there, and the permission to see what they cost."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ops", "0015_fleet_batches"),
    ]

    operations = [
        migrations.CreateModel(
            name="FleetCost",
            fields=[
                ("deployment", models.CharField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "fleet cost",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="fleetsample",
            name="registered",
            field=models.FloatField(
                help_text="Workers that were there, ready or not. Of a worker the share of the span in which it was.",
                null=True,
            ),
        ),
    ]
