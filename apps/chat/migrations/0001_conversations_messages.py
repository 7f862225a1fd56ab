import uuid

import django.db.models.deletion
import django.db.models.manager
import django.utils.timezone
import django_prometheus.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("tenants", "0001_tenants_members_audit"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Conversation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("title", models.CharField(max_length=80)),
                (
                    "model",
                    models.CharField(
                        help_text="The deployment that answered last, by its public name.", max_length=128
                    ),
                ),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "updated_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, help_text="Its last turn; the list is sorted by it."
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="conversations", to="tenants.tenant"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="conversations",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-updated_at", "-id"],
                "default_manager_name": "all_tenants",
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("conversation"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("position", models.PositiveIntegerField(help_text="Place in the conversation, from 0.")),
                ("role", models.CharField(choices=[("user", "User"), ("assistant", "Assistant")], max_length=16)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("streaming", "Being written"),
                            ("complete", "Complete"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="complete",
                        max_length=16,
                    ),
                ),
                ("content", models.TextField(blank=True)),
                (
                    "model",
                    models.CharField(blank=True, help_text="The deployment that writes or wrote it.", max_length=128),
                ),
                ("stream_id", models.CharField(blank=True, editable=False, max_length=64, null=True, unique=True)),
                ("finish_reason", models.CharField(blank=True, max_length=32)),
                ("usage", models.JSONField(blank=True, default=dict, help_text="Tokens, as the engine counted them.")),
                ("error_code", models.CharField(blank=True, max_length=64)),
                ("error", models.TextField(blank=True, help_text="What went wrong, in words for the user.")),
                (
                    "is_trimmed",
                    models.BooleanField(
                        default=False,
                        help_text="Earlier messages were left out of the prompt, because the model's context is full.",
                    ),
                ),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ("started_at", models.DateTimeField(blank=True, help_text="When its stream was asked for.", null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "conversation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="messages", to="chat.conversation"
                    ),
                ),
            ],
            options={
                "ordering": ["conversation", "position"],
                "default_manager_name": "all_tenants",
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("message"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.AddIndex(
            model_name="conversation",
            index=models.Index(fields=["tenant", "user", "-updated_at", "-id"], name="conversation_by_user"),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("state", "streaming")), fields=["started_at"], name="message_streaming"
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(fields=("conversation", "position"), name="message_position_once"),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.CheckConstraint(
                condition=models.Q(("role__in", ["user", "assistant"])), name="message_role_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["streaming", "complete", "stopped", "failed"])),
                name="message_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("role", "assistant"),
                    models.Q(("role", "user"), ("state", "complete"), ("stream_id__isnull", True)),
                    _connector="OR",
                ),
                name="message_of_user_is_complete",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", "streaming"), _negated=True),
                    models.Q(("ended_at__isnull", True), ("started_at__isnull", False), ("stream_id__isnull", False)),
                    _connector="OR",
                ),
                name="message_streaming_has_a_stream",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "streaming")), fields=("conversation",), name="message_streaming_once"
            ),
        ),
    ]
