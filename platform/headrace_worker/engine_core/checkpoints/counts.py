"""What became of checkpoints since the engine's start."""

from msgspec import Struct, field


class CheckpointCounts(Struct):
    """Only grows. Seconds are of the threads that wrote and read, not of the engine's steps."""

    saved: int = 0
    saved_bytes: int = 0
    save_seconds: float = 0.0
    loaded: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def continues(self, earlier: "CheckpointCounts") -> bool:
        """Whether these may be later counts of the same engine."""
        return (
            self.saved >= earlier.saved
            and self.loaded >= earlier.loaded
            and all(self.refused.get(reason, 0) >= count for reason, count in earlier.refused.items())
        )

    def count_saved(self, size: int, seconds: float) -> None:
        """Count a file that was written."""
        self.saved += 1
        self.saved_bytes += size
        self.save_seconds += seconds

    def count_loaded(self, size: int, seconds: float) -> None:
        """Count a request whose blocks were read."""
        self.loaded += 1
        self.loaded_bytes += size
        self.load_seconds += seconds

    def refuse(self, reason: str) -> None:
        """Count what was not saved or not loaded."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
