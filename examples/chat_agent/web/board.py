"""The content of a page: sessions, their messages, lanes and their jobs.

The board gets all events synchronously, updates its state, and publishes the changes. The numbers
of the lanes change with every job, so they are read only when a frame is sent.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from trio_lanes import Job, Lane, LaneInstrument, Lanes, SessionLane

from ..approvals import Approvals
from ..events import Answered, Asked, Began, Ended, Event, Queued, Steered
from ..sessions import Sessions
from .feed import Fact, Feed
from .spans import Spans
from .transcripts import Transcripts


class Board(LaneInstrument):
    """A listener of sessions, and an instrument of lanes; `attach` sets both."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._spans: Final = Spans(feed)
        self._transcripts: Final = Transcripts(feed)
        self._known: Final[dict[str, None]] = {}  # sessions, in the order of their creation
        self._closing = ""

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

    def snapshot(self) -> list[Fact]:
        """Return the facts of a snapshot."""
        facts = [self._session(name) for name in self._known]
        facts += self._transcripts.facts()
        facts += self._spans.facts()
        if self._closing:
            facts.append({"what": "closing", "reason": self._closing})
        return facts

    def now(self) -> Fact:
        """Return the time, and the present state of the lanes."""
        rows = [
            {
                "name": name,
                "limit": lane.concurrency,
                # A running job that is not a borrower of the limiter lends its slot.
                "holders": [
                    job.id
                    for job in self._lanes.lane(name).limiter.statistics().borrowers
                    if isinstance(job, Job)
                ],
                "active": lane.active,
                "waiting": lane.waiting,
                "oldest": lane.oldest_wait,
                "finished": lane.finished,
                "paused": lane.paused,
                "until": lane.paused_until,
            }
            for name, lane in self._lanes.statistics().lanes.items()
        ]
        return {"now": trio.current_time(), "lanes": rows}

    def _session(self, name: str) -> Fact:
        turn = self._sessions.turn(name)
        return {
            "what": "session",
            "session": name,
            "mode": self._sessions.mode(name),
            "waiting": self._sessions.waiting(name),
            "running": turn is not None,
            "asks": [call.name for call in self._approvals.waiting(name)],
            "paused": self._lanes.session(name).paused,
        }

    # ---- events

    def tell(self, event: Event) -> None:
        """Record an event of a session."""
        self._known.setdefault(event.session)
        self._transcripts.tell(event)
        self._spans.tell(event)
        if isinstance(event, Queued | Began | Steered | Asked | Answered | Ended):
            self._feed.publish(self._session(event.session))

    def job_submitted(self, job: Job[Any]) -> None:
        self._spans.job_submitted(job)

    def job_started(self, job: Job[Any]) -> None:
        self._spans.job_started(job)

    def job_finished(self, job: Job[Any]) -> None:
        self._spans.job_finished(job)
        if job.session in self._known:  # the turn is over only now
            self._feed.publish(self._session(job.session))

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        self._lane_changed(lane)

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        self._lane_changed(lane)

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        self._closing = reason
        self._feed.publish({"what": "closing", "reason": reason})

    def _lane_changed(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, SessionLane):
            self._known.setdefault(lane.key)
            self._feed.publish(self._session(lane.key))
        else:
            self.look()

    def look(self) -> None:
        """Mark a lane as changed."""
        self._feed.publish({"what": "lanes"})
