"""What a `Turn` and a `DurableTurn` share: what a registry reads of them, and the abort."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class BaseTurn:
    """One call of a handler, which can be stopped."""

    def __init__(self) -> None:
        self.is_streaming: bool = False
        self._handler_scope = trio.CancelScope()
        self._abort_called = False  # other threads may read it; Trio's flag needs its clock
        self._reason: str | None = None
        self._compacting = 0

    @property
    def is_compacting(self) -> bool:
        """Whether the handler is inside a block of `compacting`."""
        return self._compacting > 0

    @property
    def abort_called(self) -> bool:
        """Whether the turn was aborted."""
        return self._abort_called

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Mark a block in which the history is rewritten: `take` returns nothing, messages wait.

        Blocks may be nested. Neither entering nor leaving is a checkpoint.
        """
        self._compacting += 1
        try:
            yield
        finally:
            self._compacting -= 1

    def _abort(self, reason: str | None) -> None:
        if not self._abort_called:
            self._abort_called = True
            self._reason = reason
            self._handler_scope.cancel(reason)
