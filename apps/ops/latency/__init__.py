"""Latencies and samples of the fleet: from Redis to the database, and from both to pages."""
