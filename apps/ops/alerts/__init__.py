"""Alerts: rules that Celery looks at, what fired, and who is told (docs/alerts.md)."""
