"""KV checkpoints: what the engine has computed for long streams, for whoever goes on with them."""
