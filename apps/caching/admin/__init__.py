"""The admin of prompt caches and policies for cached answers."""
