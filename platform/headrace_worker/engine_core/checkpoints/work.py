"""What the scheduler's half of the connector and the model runner's half tell each other, once per step."""

from dataclasses import dataclass, field

from msgspec import Struct
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from headrace_worker.engine_core.checkpoints.store import Piece, StreamKey


class Save(Struct, frozen=True):
    """Write blocks to a file. The scheduler keeps them as they are until it hears of the end."""

    number: int
    key: StreamKey
    first: int
    hashes: tuple[bytes, ...]
    block_ids: tuple[int, ...]


class Load(Struct, frozen=True):
    """Read blocks from files, for a request that waits for them."""

    request_id: str
    hashes: tuple[bytes, ...]
    pieces: tuple[Piece, ...]
    block_ids: tuple[int, ...]


class Outcome(Struct, frozen=True):
    """How a save or a load ended."""

    number: int = 0
    """Of the save; 0 for a load."""
    request_id: str = ""
    bytes: int = 0
    seconds: float = 0.0
    refusal: str = ""


@dataclass
class Work(KVConnectorMetadata):  # type: ignore[misc]  # vLLM ships no types
    """From the scheduler: what to begin in this step."""

    saves: list[Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    unwanted: list[int] = field(default_factory=list)
    """Numbers of saves whose streams have ended."""


@dataclass
class Outcomes(KVConnectorWorkerMetadata):  # type: ignore[misc]  # vLLM ships no types
    """To the scheduler: what has ended since the last step."""

    outcomes: list[Outcome]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join what several model runners say; there is one."""
        return Outcomes(self.outcomes + other.outcomes)


NO_WORK = Work()
"""Of most steps."""
