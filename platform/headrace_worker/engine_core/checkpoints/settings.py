"""What an engine is told of checkpoints."""

from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

CHECKPOINT_SETTINGS = "headrace_checkpoints"
"""Key of these settings in the connector's extra configuration."""


class CheckpointSettings(Struct, frozen=True, kw_only=True):
    """Where checkpoints lie, how large they may grow, and when they are made."""

    directory: str
    mib_per_tenant: int = 1024
    every_tokens: int = 256
    """A stream is saved when this many tokens were generated since, ..."""
    every_seconds: float = 10.0
    """... or when this time has passed and there is a whole block more."""
    min_tokens: int = 512
    """Shorter contexts are computed again sooner than they are worth a file."""
    offload_gib: int = 0
    """Main memory for vLLM's own tier above the files (GPU only); 0 for none."""

    @property
    def root(self) -> Path:
        """The directory."""
        return Path(self.directory)

    def to_plain(self) -> dict[str, Any]:
        """Return the settings in types that every codec takes."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Return settings that were `to_plain`."""
        return msgspec.convert(plain, cls)
