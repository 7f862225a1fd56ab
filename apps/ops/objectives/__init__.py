"""Service level objectives of deployments: goals, error budgets, burn rates (docs/alerts.md)."""
