"""`Place`: where the stores of a suite are: a server, and the clock of the present test."""

from __future__ import annotations

from pathlib import Path

from trio_lanes.durable import ValkeyStore

from .clock import StoreClock, on_test_time
from .server import Server


class Place:
    """A server whose stores have the time of the present test.

    Attributes:
      server: the server, which a fixture starts before the first test.
    """

    def __init__(self) -> None:
        self.server: Server | None = None
        self._clock: StoreClock | None = None

    def clock(self) -> StoreClock:
        """Return the clock of a new test."""
        assert self.server is not None
        self.close()
        self._clock = StoreClock(self.server)
        return self._clock

    def store(self, folder: Path) -> ValkeyStore:
        """Return a store of a test, to which the folder belongs."""
        assert self.server is not None
        return on_test_time(ValkeyStore(self.server.url, namespace=folder.name, patience=2880))

    def close(self) -> None:
        """Close the clock."""
        if self._clock is not None:
            self._clock.close()
            self._clock = None
