"""Command line: `python -m headrace_launcher up`."""

import argparse
import sys

from headrace_launcher.environment import LauncherEnvironment
from headrace_launcher.errors import LaunchError
from headrace_launcher.up import up


def main() -> int:
    """Runs the command; a problem that a person can solve is a message, never a traceback."""
    parser = argparse.ArgumentParser(prog="headrace_launcher", description="Headrace on one machine.")
    parser.add_argument("command", choices=["up"])
    parser.parse_args()
    try:
        return up(LauncherEnvironment.read())
    except LaunchError as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
