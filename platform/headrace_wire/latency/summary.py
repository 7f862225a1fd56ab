"""What belongs together: the histograms of all measures, and the tallies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec

from headrace_wire.latency.histogram import LogHistogram
from headrace_wire.latency.measures import Measure, Tally

_MEASURES: Mapping[str, Measure] = {measure.value: measure for measure in Measure}
_TALLIES: Mapping[str, Tally] = {tally.value: tally for tally in Tally}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[dict[str, bytes], dict[str, int]])


class SeriesKey(NamedTuple):
    """Whose streams: "" where it is not known or does not apply."""

    deployment: str
    tenant_id: str = ""
    """32 hex digits, as in the snapshot."""
    key_id: str = ""
    """The API key's id, 32 hex digits; "" for the web chat."""
    worker: str = ""
    """The incarnation that took the stream first; "" where none did: kept answers, what was refused or left before."""


@dataclass(slots=True)
class Summary:
    """Histograms by measure, and tallies; what has nothing is not there."""

    histograms: dict[Measure, LogHistogram] = field(default_factory=dict)
    tallies: dict[Tally, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.histograms or self.tallies)

    def histogram(self, measure: Measure) -> LogHistogram:
        """Return a measure's histogram, to read or to add to; a new one where there is none yet."""
        found = self.histograms.get(measure)
        if found is None:
            found = self.histograms[measure] = LogHistogram()
        return found

    def tally(self, tally: Tally) -> int:
        """Return a counter; 0 where nothing was counted."""
        return self.tallies.get(tally, 0)

    def count(self, tally: Tally, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            self.tallies[tally] = self.tallies.get(tally, 0) + amount

    def merge(self, other: "Summary") -> None:
        """Add all that is in another one."""
        for measure, histogram in other.histograms.items():
            self.histogram(measure).merge(histogram)
        for tally, amount in other.tallies.items():
            self.count(tally, amount)

    def merge_packed(self, packed: bytes) -> None:
        """Add what another one packed. Measures and tallies of a newer version are left out.

        Raises:
            ValueError: it is none.
        """
        try:
            histograms, tallies = _decoder.decode(packed)
        except msgspec.DecodeError as error:
            raise ValueError("this is no packed summary") from error
        for name, body in histograms.items():
            if (measure := _MEASURES.get(name)) is not None:
                self.histogram(measure).merge_packed(body)
        for name, amount in tallies.items():
            if (tally := _TALLIES.get(name)) is not None:
                self.count(tally, amount)

    def pack(self) -> bytes:
        """Return the form that Redis and the database keep."""
        histograms = {measure.value: histogram.pack() for measure, histogram in self.histograms.items()}
        return _encoder.encode((histograms, {tally.value: amount for tally, amount in self.tallies.items()}))

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Read what `pack` wrote.

        Raises:
            ValueError: it is none.
        """
        self = cls()
        self.merge_packed(packed)
        return self
