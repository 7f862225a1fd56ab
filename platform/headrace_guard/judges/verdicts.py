"""What a judge says of one text, and how it fails to."""

from typing import Literal, Protocol

from msgspec import Struct

from headrace_wire.guard_policy import JudgeRule

FailureReason = Literal["timeout", "overload", "crash", "error"]
"""Late; more waits than may; the judge's process died; it could not judge this (its message says why)."""


class Verdict(Struct, frozen=True):
    """One rule's answer for one text."""

    found: bool
    score: float
    """0 to 1; what the rule's threshold is compared with."""
    finding: str = ""
    """What was found, in a word or two: the example that the text is like, the language, ..."""


class JudgeFailure(Exception):  # noqa: N818  # a verdict that does not come is not an error of the program
    """There is no verdict. The text is neither good nor bad."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason: FailureReason = reason


class AskDeployment(Protocol):
    """Puts a judge rule's question to its deployment."""

    async def ask(self, rule: JudgeRule, text: str, tenant_id: str, deadline_seconds: float) -> Verdict:
        """Return the deployment's answer.

        Raises:
            JudgeFailure: it gave none.
        """
        ...
