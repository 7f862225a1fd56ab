"""Who starts and ends workers: `protocol` says what executors have in common, `choice` which one a policy has."""
