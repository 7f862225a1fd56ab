import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0002_worker_ended"),
        ("tenants", "0002_inexact_policies"),
    ]

    operations = [
        migrations.AddField(
            model_name="modeldeployment",
            name="cached_price",
            field=models.DecimalField(
                blank=True,
                decimal_places=6,
                help_text="Per million prompt tokens that came from the prefix cache. Empty: the prompt price.",
                max_digits=12,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
                verbose_name="cached prompt price",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="completion_price",
            field=models.DecimalField(
                decimal_places=6,
                default=0,
                help_text="Per million tokens of the answer.",
                max_digits=12,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="prompt_price",
            field=models.DecimalField(
                decimal_places=6,
                default=0,
                help_text="Money per million tokens of the prompt. A new price counts for requests admitted from then on.",
                max_digits=12,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("completion_price__gte", 0),
                    ("prompt_price__gte", 0),
                    models.Q(("cached_price__isnull", True), ("cached_price__gte", 0), _connector="OR"),
                ),
                name="deployment_prices_not_negative",
            ),
        ),
    ]
