"""What a page shows, kept where it happens: sessions, what was said in them, lanes and their jobs.

It is told everything synchronously, changes what it knows, and publishes what has changed. Only
the lanes themselves are looked at when somebody wants to know: their numbers change with every
job, and nobody needs to see each of them.
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
    """Listens to sessions, and to lanes as an instrument; `attach` says to which."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._spans: Final = Spans(feed)
        self._transcripts: Final = Transcripts(feed)
        self._known: Final[dict[str, None]] = {}  # sessions, in the order in which they came
        self._closing = ""

    def attach(self, lanes: Lanes, sessions: Sessions, approvals: Approvals) -> None:
        """Before anything happens."""
        self._lanes = lanes
        self._sessions = sessions
        self._approvals = approvals

    # ---- what is known

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, session: object) -> bool:
        return session in self._known

    def snapshot(self) -> list[Fact]:
        """Facts that say everything."""
        facts = [self._session(name) for name in self._known]
        facts += self._transcripts.facts()
        facts += self._spans.facts()
        if self._closing:
            facts.append({"what": "closing", "reason": self._closing})
        return facts

    def now(self) -> Fact:
        """The time, and the lanes as they are."""
        rows = [
            {
                "name": name,
                "limit": lane.concurrency,
                # The limiter is the truth about slots: who runs and is not in here lends its own.
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

    # ---- what happens

    def tell(self, event: Event) -> None:
        """Something has happened in a session."""
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
        if job.session in self._known:  # only now is its turn over
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
        """A lane may have changed: have it looked at."""
        self._feed.publish({"what": "lanes"})
