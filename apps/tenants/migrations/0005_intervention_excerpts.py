"""What is kept of a text in which a guardrail found something."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0003_quota_override"),
        ("tenants", "0004_window_and_connections"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="intervention_excerpts",
            field=models.CharField(
                choices=[
                    ("none", "Nothing"),
                    ("hash", "A hash, to recognise the same text"),
                    ("redacted", "First and last character, and the length"),
                    ("full", "The text that was found"),
                ],
                default="redacted",
                help_text="What is kept of a text in which a guardrail found something.",
                max_length=16,
                verbose_name="excerpts of interventions",
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
                    ("guardrail.created", "Guardrail policy created"),
                    ("guardrail.changed", "Guardrail policy changed"),
                    ("guardrail.published", "Guardrail policy's mode changed"),
                    ("guardrail.rolled_back", "Guardrail policy rolled back"),
                    ("guardrail.attached", "Guardrail policy attached"),
                    ("guardrail.detached", "Guardrail policy detached"),
                    ("guardrail.deleted", "Guardrail policy deleted"),
                    ("intervention.marked", "Intervention marked"),
                ],
                db_index=True,
                max_length=64,
            ),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=models.Q(("intervention_excerpts__in", ["none", "hash", "redacted", "full"])),
                name="tenant_intervention_excerpts_known",
            ),
        ),
    ]
