"""What can be wrong with a rule."""


class PatternError(ValueError):
    """A word, pattern or region that is not acceptable; the message says what to change."""
