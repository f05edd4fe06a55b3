"""How much chance the tests try: ``CHAOS=20`` tries twenty times as much, ``CHAOS=0.2`` a fifth."""

from __future__ import annotations

import os

TIMES = float(os.environ.get("CHAOS", "1"))
THOROUGH = os.environ.get("THOROUGH", "") not in ("", "0")
"""Whether tests with the mark `thorough` are run: by `make chaos`, and by a job of the workflow."""


def examples(usual: int) -> int:
    """Return the number of examples or seeds to try, of which a usual run tries ``usual``."""
    return max(1, round(usual * TIMES))


def number(name: str, usual: int) -> int:
    """Return a number from the environment: `make chaos` sets it; a usual run has ``usual``."""
    return int(os.environ.get(name, usual))
