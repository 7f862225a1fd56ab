"""Metrics of alerts."""

from prometheus_client import Counter, Gauge

ALERTS_CHANGED = Counter("headrace_alerts_changed_total", "Alerts that fired or were over.", ["rule", "event"])
ALERTS_FIRING = Gauge("headrace_alerts_firing", "Alerts that fire now.", multiprocess_mode="livemostrecent")
