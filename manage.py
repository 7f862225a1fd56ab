#!/usr/bin/env python
"""Django's command line."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))

from django.core.management import execute_from_command_line

from headrace.env import select_settings

if __name__ == "__main__":
    select_settings()
    execute_from_command_line(sys.argv)
