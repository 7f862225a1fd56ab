"""Bringing workers to changed options, one after another."""
