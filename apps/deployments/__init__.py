"""Model deployments, and the workers that serve them."""
