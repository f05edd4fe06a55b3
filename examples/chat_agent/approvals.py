"""Calls that somebody must allow before they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from trio_lanes.agents import ActionGate

from .events import Answered, Asked, Listener
from .model import ToolCall


class NothingAskedError(LookupError):
    """There is nothing to allow or deny; the text says so, in one line."""


class Approvals:
    """What waits for a person's word: the calls of at most one turn in each session."""

    def __init__(self, tell: Listener) -> None:
        self._tell: Final = tell
        self._waiting: Final[dict[str, tuple[ActionGate, tuple[ToolCall, ...]]]] = {}
        self._closed = False

    def waiting(self, session: str) -> tuple[ToolCall, ...]:
        """The calls of the session that wait now."""
        return self._waiting[session][1] if session in self._waiting else ()

    @contextmanager
    def asking(self, session: str, calls: Sequence[ToolCall]) -> Iterator[ActionGate]:
        """Ask for these calls, if there are any, for as long as the block at most.

        What `ActionGate.wait` then returns for each of them is True if it is allowed. A gate that
        is cancelled says that there is nobody to ask.
        """
        gate = ActionGate([call.id for call in calls])
        if self._closed:
            gate.cancel("nobody is there to ask")
        if gate.missing:
            self._waiting[session] = (gate, tuple(calls))
            self._tell(Asked(session, tuple(calls)))
        try:
            yield gate
        finally:
            self._withdraw(session, gate, "the turn has ended")

    def answer(self, session: str, *, allowed: bool) -> tuple[ToolCall, ...]:
        """Allow or deny all that waits in the session. Returns what that was.

        Raises:
          NothingAskedError: if nothing does.
        """
        if session not in self._waiting:
            raise NothingAskedError(f"nothing waits for approval in {session}")
        gate, calls = self._waiting.pop(session)
        gate.submit({call.id: allowed for call in calls})
        self._tell(Answered(session, allowed))
        return calls

    def close(self) -> None:
        """Nobody is left who could be asked: whatever waits, or will, is cancelled."""
        self._closed = True
        for session, (gate, _) in list(self._waiting.items()):
            self._withdraw(session, gate, "nobody is left to ask")

    def _withdraw(self, session: str, gate: ActionGate, why: str) -> None:
        if gate.cancel(why):
            del self._waiting[session]
            self._tell(Answered(session, None))
