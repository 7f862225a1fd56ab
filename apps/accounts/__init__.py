"""People and API keys: who is calling."""
