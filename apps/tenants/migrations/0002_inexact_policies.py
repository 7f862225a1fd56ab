from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0001_tenants_members_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="inexact_penalties",
            field=models.CharField(
                choices=[("continue", "Continue, not bit-equal"), ("fail", "Fail explicitly")],
                default="continue",
                help_text="Presence and frequency penalties count only what their own engine has generated.",
                max_length=16,
                verbose_name="with penalties",
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="inexact_precision",
            field=models.CharField(
                choices=[("continue", "Continue, not bit-equal"), ("fail", "Fail explicitly")],
                default="continue",
                help_text="With bfloat16, float16 or quantisation, and without batch-invariant kernels.",
                max_length=16,
                verbose_name="below float32",
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="inexact_sampling",
            field=models.CharField(
                choices=[("continue", "Continue, not bit-equal"), ("fail", "Fail explicitly")],
                default="continue",
                help_text="Sampled answers of engines that do not draw by seed and position (speculative decoding).",
                max_length=16,
                verbose_name="with an engine's own sampling",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("inexact_penalties__in", ["continue", "fail"]),
                    ("inexact_precision__in", ["continue", "fail"]),
                    ("inexact_sampling__in", ["continue", "fail"]),
                ),
                name="tenant_inexact_policies_known",
            ),
        ),
    ]
