"""What streams took and counted: log-bucket histograms by deployment, tenant, key and worker (docs/latency.md)."""
