"""How many examples the models draw: ``CHAOS=20`` draws twenty times as many as usual."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("CHAOS", "1"))


def examples(usual: int) -> int:
    """So many examples in a usual run."""
    return usual * TIMES
