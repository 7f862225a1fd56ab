"""LoRA adapters: a tenant's own weights over a deployment's model, asked for as model `<deployment>:<adapter>`.

A *place* is a path below the folder that the operator has set aside for adapters, on gateways' and workers' machines
alike; callers never name one. A *revision* is a digest of the adapter's files, taken by the check: what is loaded is
what was checked, and whatever depends on the weights is named by it.
"""

import re
import time

from msgspec import Struct

SEPARATOR = ":"

PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,4}")
"""One to five names, none of which begins with a dot. A Hugging Face id is such a place too; nothing is downloaded."""


class AdapterUse(Struct, frozen=True, array_like=True):
    """The adapter of a request, as the server has looked it up."""

    adapter_id: str
    name: str
    place: str
    revision: str

    @property
    def key(self) -> str:
        """Names these weights, and no others."""
        return f"{self.adapter_id}.{self.revision[:16]}"


class AdapterConfig(Struct, frozen=True, kw_only=True):
    """An adapter in the configuration snapshot: checked, active, and its tenant's alone."""

    id: str
    tenant_id: str
    deployment: str
    """Public name of the deployment over whose model it goes."""
    name: str
    place: str
    revision: str
    rank: int = 0

    @property
    def use(self) -> AdapterUse:
        """What a request carries of it."""
        return AdapterUse(self.id, self.name, self.place, self.revision)


class AdapterReport(Struct, frozen=True, array_like=True):
    """What a worker says of an adapter of its deployment."""

    adapter_id: str
    revision: str
    problem: str = ""
    """Why it is not loaded; empty where it is."""


class AdapterCheck(Struct, frozen=True, kw_only=True):
    """What the check of an adapter's files says."""

    problems: list[str] = []
    notes: list[str] = []
    revision: str = ""
    rank: int = 0
    base_model: str = ""
    target_modules: list[str] = []
    checked_at: float = 0.0

    @property
    def is_accepted(self) -> bool:
        """Whether workers may load it."""
        return not self.problems


class AdapterQuestion(Struct, frozen=True, kw_only=True):
    """What the check is asked: whether the adapter at a place fits a model as it is served."""

    place: str
    model: str
    max_rank: int


def refusal(*problems: str) -> AdapterCheck:
    """Return the answer of a check that went no further."""
    return AdapterCheck(problems=list(problems), checked_at=time.time())
