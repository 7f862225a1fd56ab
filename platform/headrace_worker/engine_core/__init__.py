"""What runs inside vLLM's EngineCore process; imported by nothing else."""
