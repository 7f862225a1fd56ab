"""Rules that look at the requests of one tenant, and whose alerts those are."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0012_preload_order"),
        ("ops", "0019_fleet_preemptions"),
        ("tenants", "0016_breaker_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="alert",
            name="tenant",
            field=models.ForeignKey(
                blank=True,
                help_text="Whose requests the rule looked at; empty: all.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="tenants.tenant",
            ),
        ),
        migrations.AddField(
            model_name="alertrule",
            name="tenant",
            field=models.ForeignKey(
                blank=True,
                help_text="Empty: the requests of all tenants together. Only for a percentile or a share.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="tenants.tenant",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("tenant__isnull", True), ("signal__in", ["percentile", "share"]), _connector="OR"),
                name="alert_rule_of_a_tenant_is_of_requests",
                violation_error_message="Of a tenant only percentiles and shares of requests are known.",
            ),
        ),
    ]
