"""Conversations in the admin: whose, when, how long. What was said stays with the user."""

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from apps.chat.models import Conversation


@admin.register(Conversation)
class ConversationAdmin(ModelAdmin):  # type: ignore[misc]  # unfold ships no types
    """Read-only; deleting one is the user's affair, or that of the tenant's retention."""

    list_display = ("id", "tenant", "user", "model", "message_count", "created_at", "updated_at")
    list_filter = ("tenant", "model")
    list_select_related = ("tenant", "user")
    search_fields = ("id", "user__email", "tenant__slug")
    date_hierarchy = "updated_at"
    fields = ("id", "tenant", "user", "model", "created_at", "updated_at")
    readonly_fields = fields
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Conversation]":
        """Returns conversations without their titles, which quote the user, and with the number of messages."""
        rows: QuerySet[Conversation] = super().get_queryset(request)
        return rows.defer("title").annotate(message_count=Count("messages"))

    @admin.display(description="messages", ordering="message_count")
    def message_count(self, row: Conversation) -> int:
        """Returns the number that the query counted."""
        return getattr(row, "message_count", 0)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        """Nobody makes conversations here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:  # noqa: ARG002
        """Nobody changes them here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:  # noqa: ARG002
        """Nobody deletes them here."""
        return False
