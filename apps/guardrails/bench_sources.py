"""What the test bench takes from apps above: stored answers to replay. They put themselves in at start."""

from dataclasses import dataclass
from typing import Protocol

from django.contrib.auth.base_user import AbstractBaseUser

from apps.tenants.models import Tenant

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


class _Sources:
    def __init__(self) -> None:
        self.answers: Answers | None = None


_sources = _Sources()


def answers_register(answers: Answers) -> None:
    """Lets the bench list stored answers."""
    _sources.answers = answers


def stored_answers(*, tenant: Tenant, user: AbstractBaseUser) -> list[StoredAnswer]:
    """Returns the tenant's newest answers that this user may see."""
    read = _sources.answers
    return read(tenant=tenant, user=user, limit=LISTED_ANSWERS) if read is not None else []
