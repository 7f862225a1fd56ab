"""Limits per key, member, tenant, deployment and for everybody."""
