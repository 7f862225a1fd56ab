"""Registration of the app."""

from django.apps import AppConfig


class ChatConfig(AppConfig):
    """The web chat."""

    name = "apps.chat"
    label = "chat"
    verbose_name = "Chat"

    def ready(self) -> None:
        """Lets the test bench of guardrails replay answers."""
        from apps.chat.selectors import answers_to_replay  # noqa: PLC0415
        from apps.guardrails.bench_sources import answers_register  # noqa: PLC0415

        answers_register(answers_to_replay)
