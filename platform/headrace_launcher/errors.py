"""The error that the launcher shows to a person."""


class LaunchError(Exception):
    """Something keeps the installation from starting. The message says what, and what to do about it."""
