"""`python -m headrace_worker --deployment NAME`."""

import sys

from headrace_worker.command import main

if __name__ == "__main__":
    sys.exit(main())
