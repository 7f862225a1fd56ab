"""Registration of the app."""

from django.apps import AppConfig


class ChatConfig(AppConfig):
    """The web chat."""

    name = "apps.chat"
    label = "chat"
    verbose_name = "Chat"
