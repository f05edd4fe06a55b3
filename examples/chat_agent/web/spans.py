"""The time line of the last minute: when each job waited and ran."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import trio

from trio_lanes import Job, LaneInstrument

from ..events import Answered, Asked, Began, Ended, Event
from ..screen import shorten
from .feed import Fact, Feed

SECONDS: Final = 60.0
MAX_SPANS: Final = 1_000  # of jobs that have ended

Span = dict[str, Any]


class Spans(LaneInstrument):
    """The spans of jobs that wait or run, or that ended a short time ago."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._alive: Final[dict[int, Span]] = {}
        self._ended: Final[deque[Span]] = deque(maxlen=MAX_SPANS)
        self._turns: Final[dict[str, Span]] = {}  # {session: the span of its turn}

    def facts(self) -> Iterator[Fact]:
        """Return all spans, as facts."""
        while self._ended and self._ended[0]["finished"] < trio.current_time() - SECONDS:
            self._ended.popleft()
        for span in (*self._ended, *self._alive.values()):
            yield {"what": "span", "span": dict(span)}

    def tell(self, event: Event) -> None:
        """Record an event of a session."""
        span = self._turns.get(event.session)
        if span is None:
            return
        match event:
            case Began(_, texts):
                self._change(span, text=shorten(texts[0], 60))
            case Asked():  # the slot is lent while the turn waits for an answer
                self._change(span, lent=[*span["lent"], [trio.current_time(), None]])
            case Answered():
                (since, _) = span["lent"][-1]
                lent = [*span["lent"][:-1], [since, trio.current_time()]]
                self._change(span, lent=lent)
            case Ended(_, ending) if ending.startswith("stopped"):
                self._change(span, stopped=True)  # the job of an aborted turn goes on, and succeeds
            case _:
                pass

    def job_submitted(self, job: Job[Any]) -> None:
        span: Span = {
            "id": job.id,
            "session": job.session,
            "lane": job.lane,
            "name": job.name if job.session is None else f"turn of {job.session}",
            "text": "",
            "submitted": job.submitted_at,
            "started": None,
            "finished": None,
            "state": "waiting",
            "stopped": False,
            "lent": [],
        }
        self._alive[job.id] = span
        self._change(span)

    def job_started(self, job: Job[Any]) -> None:
        span = self._alive[job.id]
        if job.session is not None:
            self._turns[job.session] = span
        self._change(span, started=job.started_at, state="running")

    def job_finished(self, job: Job[Any]) -> None:
        span = self._alive.pop(job.id)
        if job.session is not None and self._turns.get(job.session) is span:
            del self._turns[job.session]
        if job.started_at is not None:  # a job that never started has no span to show
            self._ended.append(span)
        self._change(span, finished=job.finished_at, state=job.state.name.lower())

    def _change(self, span: Span, **fields: Any) -> None:
        span |= fields
        self._feed.publish({"what": "span", "span": dict(span)})
