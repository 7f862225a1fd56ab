"""Tells open latency pages that there is something new to read."""

from apps.tenants.ui_events import LATENCY_GROUP, ui_event_send

LATENCY_ROLLED = "latency.rolled"


def latency_pages_tell() -> None:
    """Has every open latency page read anew; for whoever writes what they read, every ten seconds or so."""
    ui_event_send(LATENCY_GROUP, LATENCY_ROLLED)
