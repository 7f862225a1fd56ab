"""Registration of the app."""

from django.apps import AppConfig


class ChatConfig(AppConfig):
    """The web chat."""

    name = "apps.chat"
    label = "chat"
    verbose_name = "Chat"

    def ready(self) -> None:
        """Lets the test bench of guardrails replay answers, and drafts name conversations."""
        from apps.api.conversations import conversations_register  # noqa: PLC0415
        from apps.chat.drafts import draft_turns  # noqa: PLC0415
        from apps.chat.selectors import answers_to_replay  # noqa: PLC0415
        from apps.guardrails.bench_sources import answers_register  # noqa: PLC0415

        answers_register(answers_to_replay)
        conversations_register(draft_turns)
