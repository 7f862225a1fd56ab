"""The partition of the engines' prefix caches that belongs to a tenant."""

import hashlib
import hmac


def cache_salt(secret: bytes, tenant_id: str) -> str:
    """Return the prefix-cache partition of a tenant; a client can neither choose nor guess it (CVE-2025-46570)."""
    return hmac.new(secret, f"cache-salt:{tenant_id}".encode(), hashlib.sha256).hexdigest()[:32]
