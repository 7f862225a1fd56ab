"""Conversations and their messages."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.chat.enums import MessageRole, MessageState
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant

TITLE_LENGTH = 80


class Conversation(ExportModelOperationsMixin("conversation"), models.Model):  # type: ignore[misc]
    """A user's conversation within a tenant. Its id is drawn by the browser, so that sending twice makes one."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="conversations")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=TITLE_LENGTH)
    model = models.CharField(max_length=128, help_text=_("The deployment that answered last, by its public name."))
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, help_text=_("Its last turn; the list is sorted by it."))

    all_tenants = models.Manager["Conversation"]()
    objects = TenantManager["Conversation"]()

    class Meta:
        ordering = ["-updated_at", "-id"]
        default_manager_name = "all_tenants"
        indexes = [models.Index(fields=["tenant", "user", "-updated_at", "-id"], name="conversation_by_user")]

    def __str__(self) -> str:
        return f"Conversation {self.id}"


class MessageManager(TenantManager["Message"]):
    """Messages carry their tenant in their conversation."""

    def for_tenant(self, tenant: Tenant) -> "QuerySet[Message]":
        """Returns the messages of one tenant."""
        return Message.all_tenants.filter(conversation__tenant=tenant)


class Message(ExportModelOperationsMixin("message"), models.Model):  # type: ignore[misc]
    """One turn's half: what the user said, or the answer, which a stream fills when it ends."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    position = models.PositiveIntegerField(help_text=_("Place in the conversation, from 0."))
    role = models.CharField(max_length=16, choices=MessageRole)
    state = models.CharField(max_length=16, choices=MessageState, default=MessageState.COMPLETE)
    content = models.TextField(blank=True)
    model = models.CharField(max_length=128, blank=True, help_text=_("The deployment that writes or wrote it."))
    stream_id = models.CharField(max_length=64, null=True, blank=True, unique=True, editable=False)
    finish_reason = models.CharField(max_length=32, blank=True)
    usage = models.JSONField(default=dict, blank=True, help_text=_("Tokens, as the engine counted them."))
    error_code = models.CharField(max_length=64, blank=True)
    error = models.TextField(blank=True, help_text=_("What went wrong, in words for the user."))
    is_trimmed = models.BooleanField(
        default=False, help_text=_("Earlier messages were left out of the prompt, because the model's context is full.")
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True, help_text=_("When its stream was asked for."))
    ended_at = models.DateTimeField(null=True, blank=True)

    all_tenants = models.Manager["Message"]()
    objects = MessageManager()

    class Meta:
        ordering = ["conversation", "position"]
        default_manager_name = "all_tenants"
        indexes = [
            models.Index(
                fields=["started_at"], name="message_streaming", condition=Q(state=MessageState.STREAMING.value)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "position"], name="message_position_once"),
            models.CheckConstraint(condition=Q(role__in=MessageRole.values), name="message_role_known"),
            models.CheckConstraint(condition=Q(state__in=MessageState.values), name="message_state_known"),
            models.CheckConstraint(
                condition=Q(role=MessageRole.ASSISTANT)
                | Q(role=MessageRole.USER, state=MessageState.COMPLETE, stream_id__isnull=True),
                name="message_of_user_is_complete",
            ),
            models.CheckConstraint(
                condition=~Q(state=MessageState.STREAMING)
                | Q(stream_id__isnull=False, started_at__isnull=False, ended_at__isnull=True),
                name="message_streaming_has_a_stream",
            ),
            # One answer at a time, whatever two tabs do.
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(state=MessageState.STREAMING.value),
                name="message_streaming_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_role_display()} {self.position}"

    @property
    def is_streaming(self) -> bool:
        """Whether its stream has not ended, as far as was stored."""
        return self.state == MessageState.STREAMING
