"""Webhook secrets get room for their encrypted form."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_intervention_excerpts")]

    operations = [
        migrations.AlterField(
            model_name="tenant",
            name="webhook_secret",
            field=models.CharField(blank=True, editable=False, max_length=300),
        ),
    ]
