"""Why latencies moved: from two times that are compared to likely causes with their evidence (docs/alerts.md)."""
