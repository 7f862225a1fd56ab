"""What an hour of a worker and a kWh cost whoever runs them."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0009_sleep"),
    ]

    operations = [
        migrations.AddField(
            model_name="modeldeployment",
            name="kwh_cost",
            field=models.DecimalField(
                blank=True,
                decimal_places=6,
                help_text="Counts where the power of GPUs is measured. Empty: not known, or part of the worker-hour.",
                max_digits=12,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
                verbose_name="cost of a kWh",
            ),
        ),
        migrations.AddField(
            model_name="modeldeployment",
            name="worker_hour_cost",
            field=models.DecimalField(
                blank=True,
                decimal_places=6,
                help_text="What you pay for an hour of one worker, its machine and GPUs, busy or not, in the unit of the prices. Without power where you give the price of a kWh. Empty: not known.",
                max_digits=12,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
                verbose_name="cost of a worker-hour",
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("worker_hour_cost__isnull", True), ("worker_hour_cost__gte", 0), _connector="OR"),
                    models.Q(("kwh_cost__isnull", True), ("kwh_cost__gte", 0), _connector="OR"),
                ),
                name="deployment_costs_not_negative",
            ),
        ),
    ]
