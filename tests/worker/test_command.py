"""The worker's process around the worker."""

import subprocess
import sys

from tests.support.environment import child_environment

_PROGRAM = """
import gc
from headrace_worker.command import GC_THRESHOLDS, keep_what_exists

class Node:
    pass

def ring():
    node = Node()
    node.self = node

keep_what_exists()
kept = gc.get_freeze_count()
assert kept > 10_000, kept
assert len(gc.get_objects()) < 100
assert gc.get_threshold() == GC_THRESHOLDS
ring()
gc.freeze()  # an engine that has ended left it behind
keep_what_exists()
assert not [one for one in (gc.unfreeze(), *gc.get_objects()) if isinstance(one, Node)]
"""


def test_the_collector_leaves_out_what_is_there_for_good() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=180, env=child_environment())
