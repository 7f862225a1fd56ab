"""LoRA adapters per tenant: their checks, their writes, what gateways and workers know of them."""
