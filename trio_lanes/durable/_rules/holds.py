"""Holds: what kept the ready jobs of a lane from a start, and since when, as claims find it.

A claim notes it of each lane with ready jobs that it looks at, if it differs from what was noted
last. So a lane that never keeps a job waiting costs no write, and one that always does costs one.
A claim with no room left looks at no further lane: for these, what was noted last goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from .tables import HOLDS, LIMITS, Tables

KEPT_HOLDS: Final = 20
"""How many changes of a lane are kept: stores read those of all lanes in each transaction."""


def note_hold(
    tables: Tables,
    now: float,
    lane: str,
    cause: str,
    *,
    until: float = math.inf,
    if_so: Callable[[], bool] | None = None,
) -> None:
    """Note what keeps the ready jobs of a lane from a start from now on; ``""``: nothing.

    Args:
      until: when it will end by itself.
      if_so: asked before a change is written.
    """
    known = tables.of(HOLDS).get(lane, ())
    if not cause and not known:  # as mostly
        return
    noted = [one for one in known if one[0] < now]
    if cause != (noted[-1][1] if noted else ""):
        noted.append((now, cause))
    if until < math.inf:
        noted.append((until, ""))
    kept = tuple(noted[-KEPT_HOLDS:])
    if kept != known and (if_so is None or if_so()):
        tables.put(HOLDS, lane, kept or None)


def forget_holds(tables: Tables) -> None:
    """Forget the holds of lanes without limits of their own that have no jobs."""
    for lane in list(tables.of(HOLDS)):
        if lane not in tables.of(LIMITS) and not tables.counts().bound.get(lane):
            tables.put(HOLDS, lane, None)
