"""The inference interface: OpenAI-compatible HTTP as a thin ASGI application, and WebSocket (headrace.v1)."""
