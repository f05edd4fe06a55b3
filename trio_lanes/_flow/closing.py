"""Whether the lanes take work: open, closing, or shut.

Closing lanes refuse new work from outside, and running jobs may still submit jobs. In shut lanes no
job starts any more, and all waiting jobs have settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

import trio

from .._config.errors import LanesClosedError

logger: Final = logging.getLogger("trio_lanes")


@final
class Closing:
    """The state of the closing of one `Lanes`, and the error for new work."""

    def __init__(self) -> None:
        self.is_open = True  # whether new work is taken from anywhere
        self.shut = False  # whether no job starts any more
        self.ended = False  # whether the block was left, and no job is there any more
        self.begun: Final = trio.Event()
        # Is called when they are shut; may be replaced: bodies may run outside of Trio
        self.over: Callable[[], object] = lambda: None
        self._refusal: LanesClosedError | None = None  # the error for new work, once it is refused
        self.is_logged = False  # whether the log says that work is refused, and why

    def begin(self, reason: str, retry_after: float | None) -> None:
        """Refuse new work from outside from now on."""
        self._refusal = LanesClosedError(reason, retry_after)  # first: other threads read it, too
        self.is_open = False
        self.begun.set()

    def error(self) -> LanesClosedError:
        """Return a new error that says why work is refused."""
        assert self._refusal is not None
        return LanesClosedError(self._refusal.reason, self._refusal.retry_after)

    def check_not_ended(self) -> None:
        """Refuse a change of lanes that have ended: it would have no effect.

        Raises:
          LanesClosedError: if they have.
        """
        if self.ended:
            raise self.error()

    def refuse(self) -> LanesClosedError:
        """Return the error for a submission that is refused; log the first refusal."""
        if not self.is_logged:
            self.is_logged = True
            logger.warning("refusing new work: %s", self._refusal)
        return self.error()
