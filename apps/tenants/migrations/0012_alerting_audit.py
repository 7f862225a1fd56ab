"""Actions of the audit trail: objectives, alert rules, receivers and silences."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0011_tenant_deleted_audit"),
    ]

    operations = [
        migrations.AlterField(
            model_name="auditevent",
            name="action",
            field=models.CharField(
                choices=[
                    ("tenant.created", "Tenant created"),
                    ("tenant.changed", "Tenant changed"),
                    ("tenant.deleted", "Tenant deleted"),
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
                    ("response_cache.created", "Response cache policy created"),
                    ("response_cache.changed", "Response cache policy changed"),
                    ("response_cache.deleted", "Response cache policy deleted"),
                    ("response_cache.purged", "Kept answers forgotten"),
                    ("prompt_cache.created", "Prompt cache created"),
                    ("prompt_cache.changed", "Prompt cache changed"),
                    ("prompt_cache.purged", "Prompt cache purged"),
                    ("prompt_cache.deleted", "Prompt cache deleted"),
                    ("intervention.marked", "Intervention marked"),
                    ("objective.created", "Objective created"),
                    ("objective.changed", "Objective changed"),
                    ("objective.deleted", "Objective deleted"),
                    ("alert_rule.created", "Alert rule created"),
                    ("alert_rule.changed", "Alert rule changed"),
                    ("alert_rule.deleted", "Alert rule deleted"),
                    ("alert_receiver.created", "Receiver of alerts created"),
                    ("alert_receiver.changed", "Receiver of alerts changed"),
                    ("alert_receiver.deleted", "Receiver of alerts deleted"),
                    ("alert_receiver.secret_renewed", "Secret of a receiver of alerts renewed"),
                    ("silence.created", "Silence created"),
                    ("silence.changed", "Silence changed"),
                    ("silence.deleted", "Silence deleted"),
                ],
                db_index=True,
                max_length=64,
            ),
        ),
    ]
