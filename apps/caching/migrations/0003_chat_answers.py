"""Whether the web chat takes part in the response cache."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("caching", "0002_prompt_caches"),
    ]

    operations = [
        migrations.AddField(
            model_name="responsecachepolicy",
            name="include_chat",
            field=models.BooleanField(
                default=False,
                help_text="Answers in the chat are kept and given again to everybody of the tenant who asks the same in the same conversation; “try again” has a new one written. Off: the chat neither keeps answers nor is given any.",
                verbose_name="the web chat's too",
            ),
        ),
    ]
