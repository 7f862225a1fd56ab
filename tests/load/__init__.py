"""The bench: what a token costs on its way through Headrace, and what its first one waits for. `make bench` runs it."""
