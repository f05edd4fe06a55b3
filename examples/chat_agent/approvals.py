"""Tool calls that need the approval of a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from trio_lanes.agents import ActionGate

from .events import Answered, Asked, Listener
from .model import ToolCall


class NothingAskedError(LookupError):
    """No call waits for approval; the text is one line for the user."""


class Approvals:
    """The calls that wait for approval, of at most one turn in each session."""

    def __init__(self, tell: Listener) -> None:
        self._tell: Final = tell
        self._waiting: Final[dict[str, tuple[ActionGate, tuple[ToolCall, ...]]]] = {}
        self._closed = False

    def waiting(self, session: str) -> tuple[ToolCall, ...]:
        """Return the calls of the session that wait for approval."""
        return self._waiting[session][1] if session in self._waiting else ()

    @contextmanager
    def asking(self, session: str, calls: Sequence[ToolCall]) -> Iterator[ActionGate]:
        """Ask a person about these calls, if there are any, until the block ends.

        The results of `ActionGate.wait` are True for allowed calls. A cancelled gate means that
        no person can be asked.
        """
        gate = ActionGate([call.id for call in calls])
        if self._closed:
            gate.cancel("no person can be asked")
        if gate.missing:
            self._waiting[session] = (gate, tuple(calls))
            self._tell(Asked(session, tuple(calls)))
        try:
            yield gate
        finally:
            self._withdraw(session, gate, "the turn has ended")

    def answer(self, session: str, *, allowed: bool) -> tuple[ToolCall, ...]:
        """Allow or deny all waiting calls of the session, and return them.

        Raises:
          NothingAskedError: if no call waits.
        """
        if session not in self._waiting:
            raise NothingAskedError(f"nothing waits for approval in {session}")
        gate, calls = self._waiting.pop(session)
        gate.submit({call.id: allowed for call in calls})
        self._tell(Answered(session, allowed))
        return calls

    def close(self) -> None:
        """Cancel all waiting and all later questions: no person is left to answer."""
        self._closed = True
        for session, (gate, _) in list(self._waiting.items()):
            self._withdraw(session, gate, "no person is left to ask")

    def _withdraw(self, session: str, gate: ActionGate, why: str) -> None:
        if gate.cancel(why):
            del self._waiting[session]
            self._tell(Answered(session, None))
