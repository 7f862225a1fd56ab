"""`python -m headrace_worker --deployment NAME`."""

import logging
import os
import sys

from headrace_worker.command import main

if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)  # everything was ended already; torch's tear-down would take seconds more for nothing
