"""Whether the lanes take work: open, closing, or shut.

While they close, new work from outside is refused, and running jobs may submit what they need to
end. Once they are shut nothing starts any more, and all that waited has settled.
"""

from __future__ import annotations

import logging
from typing import Final, final

import trio

from .._config.errors import LanesClosedError

logger: Final = logging.getLogger("trio_lanes")


@final
class Closing:
    """How far the closing of one `Lanes` has come, and what new work is told."""

    def __init__(self) -> None:
        self.is_open = True  # whether new work is taken from anywhere
        self.shut = False  # whether nothing at all starts any more
        self.begun: Final = trio.Event()
        self._told: LanesClosedError | None = None  # what new work is told, when it is not
        self._refused = 0  # submissions

    def begin(self, reason: str, retry_after: float | None) -> None:
        """Take no new work from outside from now on."""
        self._told = LanesClosedError(reason, retry_after)  # first: threads look, too
        self.is_open = False
        self.begun.set()

    def error(self) -> LanesClosedError:
        """A new error that says why work is refused."""
        assert self._told is not None
        return LanesClosedError(self._told.reason, self._told.retry_after)

    def refuse(self) -> LanesClosedError:
        """The error for a submission that is refused; the first one is logged."""
        self._refused += 1
        if self._refused == 1:
            logger.warning("refusing new work: %s", self._told)
        return self.error()
