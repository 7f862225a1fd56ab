"""Streams that are alive now: to be seen, ended, moved, and drained from where they run."""
