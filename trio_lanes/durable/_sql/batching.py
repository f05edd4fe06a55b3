"""What the stores share whose batches are a chain: over PostgreSQL, and over a `Storage`.

A batch runs on what its instance knows, and is committed if no other instance has committed before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

import attrs
import trio

from .._contract.records import Opening, StoreActivity
from .store import SqlStore

LATE_IN_A_ROW: Final = 2
"""After how many batches in a row that came late an instance sees to it that the next does not."""
LOOKED_UP_AFTER: Final = 100
"""For how many batches nothing is guessed after a guess was wrong."""
JOINED_FOR: Final = 0.05
"""Seconds from its beginning for which a batch takes claims: its time is of its beginning."""
CLOCK_SET_BY: Final = 1.0
"""Seconds by which the clock of the data must be ahead of an instance's to have been set."""
NOTIFIED: Final = 300
"""How many jobs with news are named to others; with more none is, and every waiter looks."""
QUEUE_FRONT: Final = 4
"""How many jobs of a session's queue are read at once."""
LIST_FRONT: Final = 128
"""How many jobs of a ready list are read at once, at most."""


class CountsBatches(Protocol):
    """What a store asks its tables of their batches.

    Attributes:
      late: how many times a batch came late.
      newest: the number of the newest batch when the image was up to date last, and the store's
        time then.
    """

    late: int
    newest: tuple[int, float]


class BatchingStore(SqlStore):
    """A store whose batches are a chain, and whose data may go back to what they were."""

    def __init__(self, max_payload: int, patience: float) -> None:
        super().__init__(max_payload, patience)
        self._acts: CountsBatches
        self._opening: Opening
        self._clock: trio.abc.Clock
        self._token: trio.lowlevel.TrioToken
        self.renewed: trio.Event | None = trio.Event()

    def _begin_open(self, opening: Opening) -> None:
        """Note in which run, and for what, the store is opened.

        Raises:
          RuntimeError: if it is open.
        """
        if self._writer is not None:
            kind = type(self).__name__
            raise RuntimeError(f"{self!r} is open already; make a {kind} for each block")
        self._opening = opening
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()

    def _renew_soon(self) -> None:
        """Announce that the data may be older. In a thread, which may have been left behind."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._renew)

    def _renew(self) -> None:
        renewed, self.renewed = self.renewed, trio.Event()
        assert renewed is not None
        renewed.set()

    def activity(self) -> StoreActivity | None:
        activity = super().activity()
        assert activity is not None
        batch, at = self._acts.newest
        return attrs.evolve(activity, batch=batch, image_at=at, late=self._acts.late)
