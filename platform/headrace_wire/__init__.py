"""What gateway, worker and Celery say to each other: messages, keys, functions, the token log. No Django, no vLLM."""
