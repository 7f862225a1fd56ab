"""Routes of the chat: the page at `/`, and what it asks for under `/chat/`."""

from django.urls import path

from apps.chat import views

app_name = "chat"

urlpatterns = [
    path("", views.page, name="page"),
    path("c/<uuid:conversation_id>", views.page, name="conversation_page"),
    path("chat/ticket", views.ticket, name="ticket"),
    path("chat/models", views.models, name="models"),
    path("chat/conversations", views.conversations, name="conversations"),
    path("chat/conversations/<uuid:conversation_id>", views.conversation, name="conversation"),
    path("chat/conversations/<uuid:conversation_id>/turns", views.turns, name="turns"),
    path("chat/conversations/<uuid:conversation_id>/messages/<uuid:message_id>/retry", views.retry, name="retry"),
    path("chat/conversations/<uuid:conversation_id>/messages/<uuid:message_id>/collect", views.collect, name="collect"),
    path("chat/conversations/<uuid:conversation_id>/messages/<uuid:message_id>/stop", views.stop, name="stop"),
]
