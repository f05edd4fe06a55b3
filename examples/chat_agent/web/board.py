"""The content of a page: sessions and their messages.

The board gets all events synchronously, updates its state, and publishes the changes. The lanes and
their jobs are shown by the monitor of the library.

The tables of the board empty themselves: a session is in them while it is busy, held, paused, in a
mode of its own, or open on a page. A viewer looks through a `Window`: all viewers see the states of
the sessions, and each sees the texts of those sessions alone that it has open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trio_lanes import Job, Lane, LaneInstrument, Lanes, SessionLane

from ..approvals import Approvals
from ..events import Answered, Asked, Began, Ended, Event, Queued, Steered
from ..sessions import Sessions
from .feed import Fact, Feed
from .transcripts import Transcripts


class Board(LaneInstrument):
    """A listener of sessions, and an instrument of lanes; `attach` sets both."""

    def __init__(self, feed: Feed) -> None:
        self.transcripts: Final = Transcripts(feed)
        self.closing = ""
        self._feed: Final = feed
        self._known: Final[dict[str, None]] = {}  # sessions, in the order in which they came
        self._open: Final[Counter[str]] = Counter()  # the viewers of a session

    def attach(self, lanes: Lanes, sessions: Sessions, approvals: Approvals) -> None:
        """Set the lanes and sessions, before the first event."""
        self._lanes = lanes
        self._sessions = sessions
        self._approvals = approvals

    # ---- state

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, session: object) -> bool:
        return session in self._known

    def sessions(self) -> list[Fact]:
        """Return the states of the sessions that are known, as facts."""
        return [self._session(name) for name in self._known]

    def _session(self, name: str) -> Fact:
        turn = self._sessions.turn(name)
        texts = self._sessions.waiting(name)
        return {
            "what": "session",
            "session": name,
            "mode": self._sessions.mode(name),
            "waiting": len(texts),
            "texts": texts,
            "running": turn is not None,
            "asks": [call.name for call in self._approvals.waiting(name)],
            "paused": self._lanes.session(name).paused,
            "held": self._sessions.is_held(name),
        }

    def _update(self, name: str) -> None:
        """Publish the state of a session, or forget the session if nothing goes on in it."""
        fact = self._session(name)
        if (
            name in self._sessions
            or fact["paused"]
            or fact["mode"] != self._sessions.default_mode
            or self._open[name]
        ):
            self._known.setdefault(name)
            self._feed.publish(fact)
            return
        del self._open[name]  # the zero that was read
        self.transcripts.forget(name)
        if name in self._known:
            del self._known[name]
            self._feed.publish({"what": "gone", "session": name})

    # ---- viewers

    async def enter(self, session: str) -> None:
        """A viewer opens a session: read what was said in it before."""
        self._open[session] += 1
        try:
            self._update(session)
            await self.transcripts.load(session, self._sessions.conversation(session))
        except BaseException:
            self.leave(session)
            raise

    def leave(self, session: str) -> None:
        """A viewer closes a session."""
        self._open[session] -= 1
        self._update(session)

    # ---- events

    def tell(self, event: Event) -> None:
        """Record an event of a session."""
        self.transcripts.tell(event)
        if isinstance(event, Queued | Began | Steered | Asked | Answered | Ended):
            self._update(event.session)

    def job_finished(self, job: Job[Any]) -> None:
        if job.session in self._known:  # the turn is over only now
            self._update(job.session)

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, SessionLane):
            self._update(lane.key)

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        self.lane_paused(lane)

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        self.closing = reason
        self._feed.publish({"what": "closing", "reason": reason})

    def look(self) -> None:
        """Have a frame sent to each viewer, with what it has newly opened."""
        self._feed.publish({"what": "look"})


class Window:
    """What one viewer sees of the board. Each frame names the sessions that it has open."""

    def __init__(self, board: Board) -> None:
        self._board: Final = board
        self._open: Final[dict[str, bool]] = {}  # {session: whether the viewer has its items}

    async def open(self, sessions: Iterable[str], known: bool = False) -> None:
        """Open these sessions, and close all others.

        Args:
          known: whether the viewer has the items up to the number of its last fact.
        """
        wanted = dict.fromkeys(sessions)
        for session in [session for session in self._open if session not in wanted]:
            del self._open[session]
            self._board.leave(session)
        for session in wanted:
            if session not in self._open:
                await self._board.enter(session)
                self._open[session] = known
        self._board.look()  # the viewer gets a frame

    def close(self) -> None:
        """Close all sessions: the viewer has gone."""
        for session in self._open:
            self._board.leave(session)
        self._open.clear()

    def snapshot(self) -> list[Fact]:
        """Return all that a new viewer has to know."""
        facts = self._board.sessions()
        if self._board.closing:
            facts.append({"what": "closing", "reason": self._board.closing})
        return self._seen(facts) + self._items(self._open)

    def since(self, facts: Sequence[Fact]) -> list[Fact]:
        """Return the published facts that this viewer sees, and what it newly opened."""
        fresh = [session for session, has_items in self._open.items() if not has_items]
        kinds = ("item", "piece")  # the items of a fresh session are sent as they are now
        told = [f for f in facts if not (f["what"] in kinds and f["session"] in fresh)]
        of_fresh = [fact for fact in self._board.sessions() if fact["session"] in fresh]
        return self._seen(told) + self._items(fresh) + of_fresh

    def now(self) -> Fact:
        """Return what is sent with each frame."""
        return {"open": [*self._open]}

    def _items(self, sessions: Iterable[str]) -> list[Fact]:
        sessions = [*sessions]
        self._open.update(dict.fromkeys(sessions, True))
        opened: list[Fact] = [{"what": "opened", "session": session} for session in sessions]
        return [*opened, *self._board.transcripts.facts(sessions)]

    def _seen(self, facts: Iterable[Fact]) -> list[Fact]:
        """Leave out the texts of sessions that are not open."""
        seen = []
        for fact in facts:
            if "session" in fact and fact["session"] not in self._open:
                if fact["what"] in ("item", "piece"):
                    continue
                if fact["what"] == "session":
                    fact = fact | {"texts": []}
            seen.append(fact)
        return seen
