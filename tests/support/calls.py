"""Counts of calls, which do not depend on the machine."""

from __future__ import annotations

import sys
from types import FrameType


class Calls:
    """Counts the calls of Python functions of this project, in the thread that enters the block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        self.count += event == "call" and ("/trio_lanes/" in path or "/examples/" in path)
