"""The lanes of a process and those of a store in one table: by their names, in one row each.

The core's lanes of a worker run what the store says that it runs: there, a job that runs is one
and the same. Other lanes have jobs of their own, and the numbers are added.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, final

import attrs

from trio_lanes.durable import DurableLaneStatistics

from ._shown import Frame, clipped

_COUNTS_OF_LANE: Final = (
    *("active", "slots", "lent", "cancelling", "overdue", "abandoned", "waiting", "started"),
    *("finished", "succeeded", "failed", "cancelled", "in_sessions", "in_lane"),
)


@final
@attrs.define
class StoredLanes:
    """What a store has of the lanes of one row."""

    waiting: int = 0
    parked: int = 0
    running: int = 0
    concurrency: float = 0
    paused: int = 0
    alive: int = 0
    oldest: float = 0.0
    """The longest wait, in seconds."""

    def add(self, one: DurableLaneStatistics, oldest: float) -> None:
        """Count one lane more."""
        self.waiting += one.waiting
        self.parked += one.parked
        self.running += one.running
        self.concurrency += one.concurrency
        self.paused += one.paused
        self.alive += 1
        self.oldest = max(self.oldest, oldest)


def add_to_row(row: Frame, stored: StoredLanes, *, same: bool) -> None:
    """Add what a store has to the row of a lane.

    Args:
      same: whether the core's lanes are those of a worker of the store.
    """
    row["stored_paused"] = stored.paused == stored.alive
    row["waiting"] += stored.waiting
    row["in_lane"] += stored.waiting
    row["parked"] = stored.parked
    row["oldest"] = max(row["oldest"], round(stored.oldest, 3))
    _add_slots(row, stored.running, stored.concurrency, same=same)


def add_to_totals(
    totals: Frame, each: Collection[StoredLanes], sessions: int, *, same: bool
) -> None:
    """Add what a store has to the totals."""
    totals["oldest"] = max([totals["oldest"], *(round(one.oldest, 3) for one in each)])
    totals["waiting"] += sum(one.waiting for one in each)
    totals["parked"] = sum(one.parked for one in each)
    # of a worker of the store, sessions with a job that runs are among those that are alive
    totals["sessions"] = (
        max(totals["sessions"], sessions) if same else totals["sessions"] + sessions
    )
    running, most = sum(one.running for one in each), sum(one.concurrency for one in each)
    _add_slots(totals, running, most, same=same)


def _add_slots(shown: Frame, running: int, most: float, *, same: bool) -> None:
    if same:  # the store may have been read a moment ago
        shown["slots"] = max(shown["slots"], running - shown["lent"])
        shown["active"] = max(shown["active"], running)
    else:
        shown["slots"] += running
        shown["active"] += running
        most += math.inf if shown["limit"] is None else shown["limit"]
    shown["limit"] = None if most == math.inf else most


def row_of_store(label: str, stored: StoredLanes) -> Frame:
    """Return the row of a lane that the store alone has, before that is added."""
    return {
        **dict.fromkeys(_COUNTS_OF_LANE, 0),
        "name": clipped(label),
        "template": label.endswith("*"),
        "alive": stored.alive,
        "limit": 0,
        "oldest": 0.0,
        "paused": False,
        "paused_until": None,
        "rate_until": None,
        "rates": [],
        "quantiles": None,
        "longest": None,
        "only_stored": True,
    }
