from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0004_adapter_label"),
    ]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name="worker",
            field=models.CharField(
                blank=True,
                help_text="Which had it at its end; none where no worker did, or another caller's answer was ready already.",
                max_length=64,
            ),
        ),
    ]
