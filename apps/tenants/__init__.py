"""Tenants, who belongs to them, the audit trail, and the configuration snapshot that gateways live on."""
