import uuid

import django.core.validators
import django_prometheus.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0001_quotas"),
    ]

    operations = [
        migrations.CreateModel(
            name="Plan",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "weight",
                    models.PositiveSmallIntegerField(
                        default=1,
                        help_text="Share of a busy deployment beside other tenants of the same priority: a tenant of weight 2 gets twice the tokens of one of weight 1. 1 to 100.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                    ),
                ),
                (
                    "priority",
                    models.PositiveSmallIntegerField(
                        choices=[(0, "0: high"), (1, "1: normal"), (2, "2: low"), (3, "3: lowest")],
                        default=1,
                        help_text="Waiting requests of a higher priority go first; those that wait long rise.",
                    ),
                ),
                (
                    "request_priorities",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Besides the one above, which a request has that asks for none.",
                        verbose_name="priorities that a request may ask for",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("weight__gte", 1), ("weight__lte", 100)), name="plan_weight_in_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__in", [0, 1, 2, 3])), name="plan_priority_known"
                    ),
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("plan"), models.Model),
        ),
    ]
