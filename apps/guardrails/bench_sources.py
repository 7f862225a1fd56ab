"""What the test bench takes from apps above: stored answers to replay, and judges that it can ask.

Those apps put themselves in at start (`AppConfig.ready`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from django.contrib.auth.base_user import AbstractBaseUser

from apps.guardrails.bench import Judges
from apps.tenants.models import Tenant
from headrace_guard.judges.verdicts import JudgeFailure, Verdict
from headrace_wire.guard_policy import WindowRule

LISTED_ANSWERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """Something that was said, or asked."""

    key: str
    label: str
    text: str


class Answers(Protocol):
    """Reads stored answers."""

    def __call__(self, *, tenant: Tenant, user: AbstractBaseUser, limit: int) -> list[StoredAnswer]:
        """Return the newest of the tenant that this user may see, at most so many."""
        ...


class NoJudges:
    """Stands where nobody can be asked, and says so."""

    async def judge(self, rule: WindowRule, text: str, *, tenant_id: str, deadline_seconds: float) -> Verdict:  # noqa: ARG002
        """Fails.

        Raises:
            JudgeFailure: always.
        """
        raise JudgeFailure("error", "No judge of this kind runs in this process.")


class _Sources:
    def __init__(self) -> None:
        self.answers: Answers | None = None
        self.judges: Callable[[], Judges] = NoJudges


_sources = _Sources()


def answers_register(answers: Answers) -> None:
    """Lets the bench list stored answers."""
    _sources.answers = answers


def judges_register(judges: Callable[[], Judges]) -> None:
    """Lets the bench ask these judges; `judges` is called for each run, in its event loop."""
    _sources.judges = judges


def stored_answers(*, tenant: Tenant, user: AbstractBaseUser) -> list[StoredAnswer]:
    """Returns the tenant's newest answers that this user may see."""
    read = _sources.answers
    return read(tenant=tenant, user=user, limit=LISTED_ANSWERS) if read is not None else []


def bench_judges() -> Judges:
    """Returns whom the bench can ask."""
    return _sources.judges()
