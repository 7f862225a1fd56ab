"""This app's own metrics. What guards find as they go is counted where they run."""

from prometheus_client import Counter, Gauge

INTERVENTIONS_STORED = Counter("headrace_interventions_stored_total", "Interventions that the database has.")
INTERVENTIONS_SET_ASIDE = Counter("headrace_interventions_set_aside_total", "Interventions that could not be read.")
INTERVENTIONS_BACKLOG = Gauge(
    "headrace_interventions_backlog", "Interventions that wait for the database.", multiprocess_mode="livemostrecent"
)
