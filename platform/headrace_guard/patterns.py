"""Regular expressions that can be judged while the text arrives."""


class PatternError(ValueError):
    """A pattern that is not acceptable; the message says what to change."""
