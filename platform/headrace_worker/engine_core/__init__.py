"""What runs inside vLLM's EngineCore process. Of these modules, only that process imports `scheduler`."""
