"""Lets a text out: what need not wait any longer, with masks in the place of what must not be seen."""

from bisect import bisect_left

from msgspec import Struct

from headrace_guard.kept_text import KeptText
from headrace_guard.masking import Masking
from headrace_guard.normalisation import extends


class Region(Struct):
    """Text to be masked as one."""

    start: int
    end: int
    leader: tuple[int, int]
    """Whose mask it is: of those that begin first the longest, then the one named first, as (end, -index)."""


class Release:
    """The way out of one text."""

    def __init__(self, text: KeptText, masks: list[str]) -> None:
        """Let out `text`; `masks` are those of all targets, by index."""
        self.released = 0
        """Offset of what is not out yet."""
        self._text = text
        self._masks = masks
        self._masking = Masking()
        self._regions: list[Region] = []
        self._escapes: list[tuple[int, int]] = []
        self._end_of_mask = -1

    def is_idle(self, position: int) -> bool:
        """Whether all is out, and what comes next goes out as it is for as long as nothing is found in it."""
        return (
            self.released == position
            and self._end_of_mask != position  # what extends the last character of a mask would go with it
            and not self._regions
            and not self._escapes
            and self._masking.is_plain
        )

    def skip_to(self, position: int) -> None:
        """Take all before as gone out, as it was: while this `is_idle`, nobody needs to be asked."""
        self.released = position

    def add_mask(self, start: int, end: int, target: int) -> None:
        """Mask this; what overlaps is one."""
        added = Region(start, end, (end, -target))
        first = len(self._regions)
        while first and self._regions[first - 1].end > start:
            first -= 1
        last = first
        while last < len(self._regions) and self._regions[last].start < added.end:
            region = self._regions[last]
            if region.start == added.start:
                added.leader = max(added.leader, region.leader)
            elif region.start < added.start:
                added.leader = region.leader
            added.start, added.end = min(region.start, added.start), max(region.end, added.end)
            last += 1
        self._regions[first:last] = [added]

    def add_escape(self, start: int, end: int) -> None:
        """Never begin or end a mask within this."""
        self._escapes.append((start, end))

    def up_to(self, limit: int, position: int, open_escape: int | None) -> str:
        """Let out what comes before `limit`, of a text of which `position` characters have come."""
        out: list[str] = []
        limit = self._whole_escapes(limit)
        if self._end_of_mask == self.released:
            self._pass_extending(position)
        while self._regions and self._regions[0].start < limit:
            region = self._regions[0]
            if open_escape is not None and region.start < open_escape < region.end:
                # Where the mask ends, the escape decides; until then it stands at the escape's beginning.
                self._mask(Region(region.start, open_escape, region.leader), out)
                return "".join(out)
            self._mask(self._regions.pop(0), out)
            self._pass_extending(position)
        if limit > self.released:
            out.append(self._masking.keep(self._text.between(self.released, limit)))
            self.released = limit
        self._escapes = [one for one in self._escapes if one[1] > self.released]
        return "".join(out)

    def _mask(self, region: Region, out: list[str]) -> None:
        mask = ""
        if region.start >= self.released:
            start = max(self._whole_escapes(region.start), self.released)
            out.append(self._masking.keep(self._text.between(self.released, start)))
            self.released = start
            mask = self._masks[-region.leader[1]]
        end = max(self._whole_escapes(region.end, to_end=True), self.released)
        out.append(self._masking.mask(self._text.between(self.released, end), mask))
        self.released = self._end_of_mask = end

    def _whole_escapes(self, offset: int, *, to_end: bool = False) -> int:
        found = bisect_left(self._escapes, (offset, 0)) - 1
        if found < 0 or self._escapes[found][1] <= offset:
            return offset
        return self._escapes[found][1 if to_end else 0]

    def _pass_extending(self, position: int) -> None:
        while self.released < position and extends(self._text.between(self.released, self.released + 1)):
            self.released += 1
        self._end_of_mask = self.released
