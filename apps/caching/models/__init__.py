"""Prompt caches and policies for cached answers."""
