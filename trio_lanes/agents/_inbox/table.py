"""A table of inboxes by session, which keeps the inboxes of busy and of held sessions only.

An idle inbox that is not held and owes no summary has no state but the ids of recent messages and
its statistics. Both are kept by the table: the ids in one list for all sessions, the outcomes in
one count. So such an inbox leaves the table, and the next message of the session gets a new inbox.
The table therefore never gives an inbox away: the holder of an inbox that has left the
table could post into it beside its successor.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from typing import Any, ClassVar, Final, Literal

import trio

from trio_lanes import Lanes

from .ids import KnownIds
from .inbox import Inbox, statistics
from .queue import Overflow, WhenBusy
from .receipt import InboxStatistics, Receipt, SettledKind
from .turn import Handler, Turn, check_then


class Inboxes:
    """The inboxes of all sessions, as a table that empties itself.

    ::

        async def handler(turn: Turn) -> str:
            return await ask_the_model([turn.session, *turn.messages])

        receipt = Inboxes(lanes, handler).post("alice", "hello")
        print((await receipt.settled()).result)

    A session is in the table while a turn of it is active, a message of it waits, it is held, or
    its next turn has to begin with a `Summary`. Any other session costs nothing, so a service may
    have any number of them. All sessions have the same handler, which reads ``turn.session``, and
    the same options, which are those of an `Inbox`.

    Raises:
      TypeError, ValueError: for a bad option.
      UnknownLaneError: if there is no such lane.
    """

    _inbox_type: ClassVar[type[Inbox]] = Inbox

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
        steers_first: bool = True,
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
            "steers_first": steers_first,
        }
        self._inboxes: Final[dict[str, Inbox]] = {}
        self._known: Final = KnownIds()
        self._outcomes: Final = dict.fromkeys(SettledKind, 0)
        # raises for a bad option, at this call
        self._inbox_type(lanes, "probe", handler, **self._options)

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.Inboxes at {id(self):#x}, {len(self._inboxes)} busy sessions>"

    # ---- queries; none of these is a checkpoint

    def __len__(self) -> int:
        """The number of sessions in the table."""
        return len(self._inboxes)

    def __contains__(self, session: object) -> bool:
        """Whether the session is in the table: busy, held, or with a summary for its next turn."""
        return isinstance(session, str) and self._find(session) is not None

    @property
    def sessions(self) -> list[str]:
        """The keys of the sessions in the table."""
        return [*self._inboxes]

    @property
    def held(self) -> list[str]:
        """The keys of the sessions that are held."""
        return [key for key, inbox in [*self._inboxes.items()] if inbox.is_held]

    def turn(self, session: str) -> Turn | None:
        """Return the active turn of a session, or None."""
        inbox = self._find(session)
        return None if inbox is None else inbox.turn

    def waiting(self, session: str) -> list[Receipt]:
        """Return the receipts of the waiting messages of a session, in order."""
        inbox = self._find(session)
        return [] if inbox is None else inbox.waiting

    def is_held(self, session: str) -> bool:
        """Whether a session is held; see `Inbox.is_held`."""
        inbox = self._find(session)
        return inbox is not None and inbox.is_held

    def statistics(self) -> InboxStatistics:
        """Return the number of messages in each state and with each outcome, over all sessions."""
        with suppress(RuntimeError):  # the clock of asyncio's lanes has ended with their block
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
        expected_turn: str | None = None,
    ) -> Receipt:
        """Put ``message`` in the queue of a session, and return its receipt; see `Inbox.post`.

        An ``id`` counts inside its session. Not a checkpoint.

        Raises:
          TypeError, ValueError: for a bad session, or one whose lane is wider than 1; for an
            unknown mode, or a bad ``expected_turn``.
          LanesClosedError, LaneFullError, UnknownLaneError: as `Inbox.post`.
        """
        key = self._lanes.session(session).key
        inbox = self._inboxes.get(key) or self._new(key)
        try:
            return inbox.post(
                message, when_busy=when_busy, id=id, group=group, expected_turn=expected_turn
            )
        finally:
            inbox._tell_if_idle()  # it was made for nothing: refused, or posted before

    # ---- holding, stopping

    def hold(self, session: str) -> None:
        """Begin no turn of a session until `release`; see `Inbox.hold`. Not a checkpoint."""
        (self._find(session) or self._new(session)).hold()

    def release(self, session: str) -> None:
        """End the hold of a session; see `Inbox.release`. Not a checkpoint."""
        inbox = self._find(session)
        if inbox is not None:
            inbox.release()

    async def stop(
        self,
        session: str,
        then: Literal["run", "hold", "clear"] = "run",
        *,
        reason: str | None = None,
        timeout: float = 15.0,
    ) -> bool:
        """Cancel the active turn of a session; see `Inbox.stop`. A checkpoint."""
        check_then(then)
        inbox = self._find(session)
        if inbox is None and then == "hold":
            inbox = self._new(session)
        if inbox is None:
            await trio.lowlevel.checkpoint()
            return True
        return await inbox.stop(then, reason=reason, timeout=timeout)

    async def abort(self, session: str, reason: str | None = None, timeout: float = 15.0) -> bool:
        """Cancel the waiting messages and the turn of a session: `stop` with ``then="clear"``."""
        return await self.stop(session, "clear", reason=reason, timeout=timeout)

    # ---- the table

    def _find(self, session: str) -> Inbox | None:
        return self._inboxes.get(self._lanes.session(session).key)

    def _new(self, session: str) -> Inbox:
        """Make the inbox of a session that has none, and put it into the table."""
        inbox = self._inbox_type(self._lanes, session, self._handler, **self._options)
        self._inboxes[inbox.session] = inbox
        inbox._known = self._known
        inbox._outcomes = self._outcomes
        inbox._when_idle = self._forget
        return inbox

    def _forget(self, inbox: Inbox) -> None:
        """Take an idle inbox out of the table."""
        if self._inboxes.get(inbox.session) is inbox:
            del self._inboxes[inbox.session]
