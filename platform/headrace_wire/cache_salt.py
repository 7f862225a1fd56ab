"""The partition of the engines' prefix caches that belongs to a tenant."""

import hashlib
import hmac

from headrace_wire.adapters import AdapterUse


def cache_salt(secret: bytes, tenant_id: str, adapter: AdapterUse | None = None) -> str:
    """Return the prefix-cache partition of a tenant; a client can neither choose nor guess it (CVE-2025-46570).

    Each revision of an adapter has a partition of its own: keys and values come from its weights.
    """
    named = f"cache-salt:{tenant_id}" + (f":{adapter.key}" if adapter is not None else "")
    return hmac.new(secret, named.encode(), hashlib.sha256).hexdigest()[:32]
