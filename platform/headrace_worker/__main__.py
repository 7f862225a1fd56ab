"""`python -m headrace_worker --deployment NAME`."""

import multiprocessing
import sys

from headrace_worker.process_guard import die_with_parent

if __name__ == "__mp_main__":
    # A child that multiprocessing spawned (vLLM's EngineCore) imports this module first: guard it before anything else.
    _parent = multiprocessing.parent_process()
    die_with_parent(_parent.pid if _parent is not None else None)
else:
    from headrace_worker.command import main

    if __name__ == "__main__":
        sys.exit(main())
