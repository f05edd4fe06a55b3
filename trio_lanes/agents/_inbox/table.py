"""A table of inboxes by session, which keeps the inboxes of busy sessions only.

An idle inbox that owes no summary has no state but the ids of recent messages and its statistics.
Both are kept by the table: the ids in one list for all sessions, the outcomes in one count. So an
inbox leaves the table when its last message has settled, and the next message of the session gets a
new inbox. The table therefore never gives an inbox away: the holder of an inbox that has left the
table could post into it beside its successor.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, final

import trio

from trio_lanes import Lanes

from .ids import KnownIds
from .inbox import Inbox, statistics
from .queue import Overflow, WhenBusy
from .receipt import InboxStatistics, Receipt, SettledKind
from .turn import Handler, Turn


@final
class Inboxes:
    """The inboxes of all sessions, as a table that empties itself.

    ::

        async def handler(turn: Turn) -> str:
            return await ask_the_model([turn.session, *turn.messages])

        receipt = Inboxes(lanes, handler).post("alice", "hello")
        print((await receipt.settled()).result)

    A session is in the table while a turn of it is active, a message of it waits, or its next turn
    has to begin with a `Summary`. An idle session costs nothing, so a service may have any number
    of them. All sessions have the same handler, which reads ``turn.session``, and the same options,
    which are those of an `Inbox`.

    Raises:
      TypeError, ValueError: for a bad option.
      UnknownLaneError: if there is no such lane.
    """

    def __init__(
        self,
        lanes: Lanes,
        handler: Handler,
        *,
        when_busy: WhenBusy = WhenBusy.STEER,
        lane: str = "main",
        debounce: float = 0.5,
        max_wait: float = 5.0,
        cap: int | float = 20,
        overflow: Overflow = Overflow.SUMMARIZE,
        hold_on_failure: bool = False,
    ) -> None:
        self._lanes: Final = lanes
        self._handler: Final = handler
        self._options: Final[dict[str, Any]] = {
            "when_busy": WhenBusy(when_busy),
            "lane": lane,
            "debounce": debounce,
            "max_wait": max_wait,
            "cap": cap,
            "overflow": overflow,
            "hold_on_failure": hold_on_failure,
        }
        self._inboxes: Final[dict[str, Inbox]] = {}
        self._known: Final = KnownIds()
        self._outcomes: Final = dict.fromkeys(SettledKind, 0)
        self._new("probe")  # raises for a bad option, at the call that gave it

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.Inboxes at {id(self):#x}, {len(self._inboxes)} busy sessions>"

    # ---- queries; none of these is a checkpoint

    def __len__(self) -> int:
        """The number of busy sessions."""
        return len(self._inboxes)

    def __contains__(self, session: object) -> bool:
        """Whether the session is busy."""
        return isinstance(session, str) and self._find(session) is not None

    @property
    def sessions(self) -> list[str]:
        """The keys of the busy sessions."""
        return [*self._inboxes]

    def turn(self, session: str) -> Turn | None:
        """Return the active turn of a session, or None."""
        inbox = self._find(session)
        return None if inbox is None else inbox.turn

    def waiting(self, session: str) -> list[Receipt]:
        """Return the receipts of the waiting messages of a session, in order."""
        inbox = self._find(session)
        return [] if inbox is None else inbox.waiting

    def is_held(self, session: str) -> bool:
        """Whether the waiting messages of a session are held after a failure."""
        inbox = self._find(session)
        return inbox is not None and inbox.is_held

    def statistics(self) -> InboxStatistics:
        """Return the number of messages in each state and with each outcome, over all sessions."""
        self._known.forget_old(trio.current_time())
        return statistics([*self._inboxes.values()], self._outcomes)

    # ---- messages

    def post(
        self,
        session: str,
        message: Any,
        *,
        when_busy: WhenBusy | None = None,
        id: Hashable = None,
        group: Hashable = None,
    ) -> Receipt:
        """Put ``message`` in the queue of a session, and return its receipt; see `Inbox.post`.

        An ``id`` counts inside its session. Not a checkpoint.

        Raises:
          TypeError, ValueError: for a bad session, or one whose lane is wider than 1; for an
            unknown mode.
          LanesClosedError, LaneFullError, UnknownLaneError: as `Inbox.post`.
        """
        key = self._lanes.session(session).key
        inbox = self._inboxes.get(key)
        if inbox is None:
            inbox = self._inboxes[key] = self._new(key)
        try:
            return inbox.post(message, when_busy=when_busy, id=id, group=group)
        finally:
            inbox._tell_if_idle()  # it was made for nothing: refused, or posted before

    def release(self, session: str) -> None:
        """Run the messages of a session that are held after a failure; see `Inbox.release`."""
        inbox = self._find(session)
        if inbox is not None:
            inbox.release()

    async def abort(self, session: str, reason: str | None = None, timeout: float = 15.0) -> bool:
        """Cancel the waiting messages and the turn of a session; see `Inbox.abort`."""
        inbox = self._find(session)
        if inbox is None:
            await trio.lowlevel.checkpoint()
            return True
        return await inbox.abort(reason, timeout)

    # ---- the table

    def _find(self, session: str) -> Inbox | None:
        return self._inboxes.get(self._lanes.session(session).key)

    def _new(self, session: str) -> Inbox:
        inbox = Inbox(self._lanes, session, self._handler, **self._options)
        inbox._known = self._known
        inbox._outcomes = self._outcomes
        inbox._when_idle = self._forget
        return inbox

    def _forget(self, inbox: Inbox) -> None:
        """Take an idle inbox out of the table."""
        if self._inboxes.get(inbox.session) is inbox:
            del self._inboxes[inbox.session]
