"""How much chance the tests try: ``CHAOS=20`` tries twenty times as much, ``CHAOS=0.2`` a fifth."""

from __future__ import annotations

import math
import os
from typing import Final

TIMES = float(os.environ.get("CHAOS", "1"))
THOROUGH = os.environ.get("THOROUGH", "") not in ("", "0")
"""Whether tests with the mark `thorough` are run: by `make chaos`, and by a job of the workflow."""
IN_CI: Final = os.environ.get("CI", "").lower() in ("1", "true")


def times(usual: int) -> int:
    """Return how many seeds or kills to try, where a usual run tries ``usual``."""
    return max(1, round(usual * TIMES))


def examples(usual: int) -> int:
    """Return how many examples Hypothesis plays at a time, where a usual run plays ``usual``.

    In CI it plays half of them, and plays them a second time, fresh (tests/support/fresh.py).
    """
    return times(math.ceil(usual / 2) if IN_CI else usual)


def number(name: str, usual: int) -> int:
    """Return a number from the environment: `make chaos` sets it; a usual run has ``usual``."""
    return int(os.environ.get(name, usual))
