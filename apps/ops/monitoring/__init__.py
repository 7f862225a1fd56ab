"""Files for Prometheus and Grafana, made of the names that are used here (docs/alerts.md)."""
