"""vLLM behind the `Engine` protocol: with its `engine_core` plug-ins, all that imports it."""
