import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0002_plans"),
        ("tenants", "0002_inexact_policies"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="plan",
            field=models.ForeignKey(
                blank=True,
                help_text="Its weight and priority in busy queues. Empty: weight 1, normal priority.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tenants",
                to="quotas.plan",
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="webhook_secret",
            field=models.CharField(blank=True, editable=False, max_length=100),
        ),
        migrations.AddField(
            model_name="tenant",
            name="webhook_url",
            field=models.CharField(
                blank=True,
                help_text="Notices are posted there, signed (see docs/usage.md). Empty: by email alone.",
                max_length=500,
                validators=[django.core.validators.URLValidator(schemes=["http", "https"])],
                verbose_name="webhook URL",
            ),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="action",
            field=models.CharField(
                choices=[
                    ("tenant.created", "Tenant created"),
                    ("tenant.changed", "Tenant changed"),
                    ("tenant.webhook_secret_renewed", "Tenant's webhook secret renewed"),
                    ("member.added", "Member added"),
                    ("member.changed", "Member's role changed"),
                    ("member.removed", "Member removed"),
                    ("user.created", "User created"),
                    ("user.changed", "User changed"),
                    ("api_key.created", "API key created"),
                    ("api_key.changed", "API key changed"),
                    ("api_key.rotated", "API key rotated"),
                    ("api_key.revoked", "API key revoked"),
                    ("deployment.created", "Deployment created"),
                    ("deployment.changed", "Deployment changed"),
                    ("deployment.deleted", "Deployment deleted"),
                    ("quota.created", "Quota created"),
                    ("quota.changed", "Quota changed"),
                    ("quota.deleted", "Quota deleted"),
                    ("plan.created", "Plan created"),
                    ("plan.changed", "Plan changed"),
                    ("plan.deleted", "Plan deleted"),
                ],
                db_index=True,
                max_length=64,
            ),
        ),
    ]
