"""vLLM behind the `Engine` protocol; the only module that imports it."""
