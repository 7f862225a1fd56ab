"""Says of an ended stream where its answer came from."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_api_keys"),
        ("deployments", "0004_drafts"),
        ("tenants", "0009_response_cache_audit"),
        ("usage", "0002_notices"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="usagerecord",
            name="source",
            field=models.CharField(
                choices=[("engine", "Engine"), ("cache", "Response cache"), ("shared", "The same request's stream")],
                default="engine",
                help_text="What was not computed for it counts tokens only where the response cache's policy says so.",
                max_length=16,
                verbose_name="answered by",
            ),
        ),
        migrations.AddConstraint(
            model_name="usagerecord",
            constraint=models.CheckConstraint(
                condition=models.Q(("source__in", ["engine", "cache", "shared"])), name="usage_record_source_known"
            ),
        ),
    ]
