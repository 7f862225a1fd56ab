"""Compares two times."""

from apps.ops.diagnosis.causes import LOOKS, Finding
from apps.ops.diagnosis.movements import movements
from apps.ops.diagnosis.observations import Observation


def diagnose(now: Observation, before: Observation) -> list[Finding]:
    """Returns likely causes of what became slower, or of streams that time out, the one that explains most first.

    Most is meant in seconds of a stream: all of a first token that came 10 ms later is little beside answers that take
    a second longer.
    Nothing is returned where nothing grew, where there is too little to compare, or where no cause has evidence.
    """
    moved = movements(now, before)
    found = [finding for look in LOOKS if (finding := look(now, before, moved)) is not None]
    return sorted(found, key=lambda finding: -finding.seconds)
