"""A bar for work of known steps: redrawn in place on a terminal, a line a step elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from headrace_launcher.demo_model import STEPS

_WIDTH = 24


class ProgressBar:
    """Shows how many of the demo model's steps are done."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._is_terminal = sys.stdout.isatty()
        self._drawn = False

    def step(self, name: str) -> None:
        """Shows that the step `name` begins."""
        done = STEPS.index(name) if name in STEPS else 0
        share = done / (len(STEPS) - 1)
        filled = round(share * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        text = f"{self._title} [{bar}] {share:4.0%} {name} ({time.monotonic() - self._started:.0f} s)"
        sys.stdout.write(f"\r\x1b[K  {text}" if self._is_terminal else f"  {text}\n")
        sys.stdout.flush()
        self._drawn = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._drawn and self._is_terminal:
            sys.stdout.write("\n")
