"""Starts a whole Headrace on one machine: `python -m headrace_launcher up`. No Django in here."""
