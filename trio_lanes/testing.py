"""An instrument that checks the guarantees of lanes while a test runs.

::

    async def test_replies_are_in_order(autojump_clock):
        recorder = LaneRecorder()
        async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
            for text in texts:
                lanes.submit_nowait(reply, text, session="alice", name=text)
        recorder.check()
        assert [job.name for job in recorder.started] == texts

It checks:

* Order in a session: when a job starts, no better job of its session waits that is bound for the
  same global lane, unless the session may start both, and the lane is fair or has ``aging``. A
  better job has a higher priority, or the same priority and an earlier place. At most as many
  better jobs wait for other global lanes as the session may start beside the job.
* Order in a global lane: when a job starts, no better job stands in the line of its lane. A better
  job has a higher priority (with its wait, if the lane has ``aging``), or the same priority, an
  earlier arrival and, if the lane is fair, the same owner.
* Overlap: a start never takes more slots than a session or a global lane has then, and the
  limiters say the same. A slot is free when its job has settled, or while its job lends it; so a
  job that was reset, and whose body goes on, does not count.
* Life: a job starts at most once and settles exactly once, its state changes only as `JobState`
  allows, and its times do not run backwards.
* Progress: when `LaneRecorder.check` is called, nothing waits that could start (in lanes without
  rate limits, group and shared limiter), and nothing is left in lanes that have ended.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeVar, cast, final

import attrs
import trio

from ._actors.job import AnyJob
from ._actors.state import RUNNING, TRANSITIONS, WAITING, JobState
from ._config.names import resolve_global_lane
from ._instrument import LaneInstrument
from .replay._capture import LimitHistory, RunFacts, facts_of
from .replay._recording import Step, write_recording

if TYPE_CHECKING:
    from . import Lane, Lanes, SessionLane
    from ._actors.actor import Actor
    from ._actors.lane import LaneActor
    from ._actors.session import SessionActor
    from ._flow.loop import Scheduler

A = TypeVar("A")


@final
@attrs.define(eq=False, kw_only=True)
class RecordedJob:
    """The record of a job in a `LaneRecorder`; it does not keep the job itself alive.

    It has the fields of `Job`, which are up to date once the job has settled.
    """

    id: int
    name: str
    session: str | None
    lane: str
    priority: int
    """Its priority when it started or settled."""
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    state: JobState = WAITING
    _job: weakref.ref[AnyJob] = attrs.field(repr=False)

    @property
    def job(self) -> AnyJob | None:
        """The handle; None if the job has settled and no other code has kept it."""
        return self._job()


@final
class LaneRecorder(LaneInstrument):
    """An instrument that checks lanes and records the jobs in them.

    Give it to one `open_lanes`, as the first of its instruments, so that it gets each change
    before another instrument acts on the change. When a job starts, it reads all jobs that wait in
    the same line: it is for tests, with up to some thousand waiting jobs.

    Attributes:
      submitted, started, finished: the jobs so far, as `RecordedJob`, in the order in which they
        were submitted, started and settled.
      violations: the violations so far, in words.
    """

    def __init__(self) -> None:
        self.submitted: Final[list[RecordedJob]] = []
        self.started: Final[list[RecordedJob]] = []
        self.finished: Final[list[RecordedJob]] = []
        self.violations: Final[list[str]] = []
        self._records: Final[weakref.WeakKeyDictionary[AnyJob, RecordedJob]] = (
            weakref.WeakKeyDictionary()
        )
        # The jobs that have not settled are kept here, and only they.
        self._unsettled: Final[dict[AnyJob, SessionActor | None]] = {}  # with their sessions
        self._waiting: Final[_Places[SessionActor]] = _Places()
        self._in_line: Final[_Places[LaneActor]] = _Places()  # and some that were taken back
        self._running: Final[_Places[Actor]] = _Places()
        self._peaks: Final[defaultdict[str, int]] = defaultdict(int)
        # For `save`
        self._limits: Final = LimitHistory()
        self._facts: Final[list[RunFacts]] = []  # of the jobs that have settled
        # {id of a job that has not settled: ...}
        self._parents: Final[dict[int, int]] = {}
        self._steps: Final[defaultdict[int, list[Step]]] = defaultdict(list)

    def __repr__(self) -> str:
        return (
            f"<trio_lanes.testing.LaneRecorder: {len(self.submitted)} submitted, "
            f"{len(self.started)} started, {len(self.finished)} finished, "
            f"{len(self.violations)} violations>"
        )

    def check(self) -> None:
        """Raise if anything was wrong so far, or is wrong now. Not a checkpoint.

        It can be called at any time: after the block of the lanes, and also inside.

        Raises:
          AssertionError: it has a line for each violation, and for each fault of this moment.
        """
        # A wait may have been cancelled just now: what follows from that comes soon.
        for scheduler in {cast("Scheduler", job._keeper) for job in self._unsettled}:
            scheduler.catch_up()
        wrong = [*self.violations, *self._stuck()]
        if wrong:
            raise AssertionError("the lanes broke their contract:\n" + "\n".join(wrong))

    def peak(self, lane: str) -> int:
        """The most slots in use at once in that global lane, or ``session:<key>``, at any start."""
        return self._peaks.get(resolve_global_lane(lane), 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded to a file, for `trio_lanes.replay` and ``trio-lanes replay``.

        It has the times, lanes, priorities, costs and outcomes of the last 100,000 jobs, the limits
        of their lanes, and the changes of these; no arguments, no results, and numbers instead of
        the keys of sessions. Names of jobs are in it. It can be called at any time. The file is
        replaced as a whole, or not at all. It writes to disk: not a checkpoint.

        Raises:
          OSError: if the file cannot be written; then a former file is as it was.
          RuntimeError: if no lanes were opened with this recorder.
        """
        facts = [*self._facts, *map(self._facts_of, self._unsettled)]
        write_recording(self._limits.recording(facts), path)

    def _facts_of(self, job: AnyJob) -> RunFacts:
        return facts_of(job, self._parents.get(job.id), self._steps.get(job.id, ()))

    # ---- hooks

    def lanes_opened(self, lanes: Lanes) -> None:
        """A hook; see `LaneInstrument`."""
        self._limits.lanes_opened(lanes)

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._limits.lane_configured(lane)

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._limits.lane_paused(lane)

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._limits.lane_resumed(lane)

    def job_lent(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        self._steps[job.id].append((trio.current_time(), "lent"))

    def job_readmitted(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        self._steps[job.id].append((trio.current_time(), "wanted"))

    def job_regained(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        self._steps[job.id].append((trio.current_time(), "held"))

    def job_submitted(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        record = self._records.get(job)
        if record is None:
            self._meet(job)
        else:
            self._blame(job, "was submitted twice")

    def job_forwarded(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        self._meet(job)
        self._in_line.add(job._lane, job)

    def job_started(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        record = self._meet(job)
        if record.started_at is not None:
            self._blame(job, "started twice")
            return
        if record.finished_at is not None:
            self._blame(job, "started after it had settled")
            return
        self._start(job, record)
        if job.done:  # an instrument before this one has reset it
            return
        if job.state is not RUNNING:
            self._blame(job, f"was started but is {job.state.name}")
        self._check_slots(job)
        self._check_order_in_session(job)
        self._check_order_in_lane(job)

    def job_finished(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        record = self._meet(job)
        if record.finished_at is not None:
            self._blame(job, "settled twice")
            return
        if job.started_at is not None and record.started_at is None:
            self._start(job, record)
        self._follow(job, record)
        if not job.done:
            self._blame(job, f"is reported to have settled but is {job.state.name}")
        record.finished_at = job.finished_at
        times = [job.submitted_at, job.started_at, job.finished_at]
        known = [time for time in times if time is not None]
        if job.finished_at is None or known != sorted(known):
            self._blame(job, "was submitted, started and finished at {}, {}, {}".format(*times))
        self.finished.append(record)
        session = self._unsettled.pop(job, None)
        self._facts.append(self._facts_of(job))
        self._parents.pop(job.id, None)
        self._steps.pop(job.id, None)
        self._waits_no_more(job, session)
        for actor in _actors(job, session):
            self._running.discard(actor, job)

    # ---- keeping record

    def _meet(self, job: AnyJob) -> RecordedJob:
        """The record of ``job``: a new one if it was not heard of before."""
        record = self._records.get(job)
        if record is None:
            record = self._records[job] = RecordedJob(
                id=job.id,
                name=job.name,
                session=job.session,
                lane=job.lane,
                priority=job.priority,
                submitted_at=job.submitted_at,
                job=weakref.ref(job),
            )
            self.submitted.append(record)
            self._unsettled[job] = job._session_lane
            if job.parent is not None:
                self._parents[job.id] = job.parent.id
            if job._session_lane is None:
                self._in_line.add(job._lane, job)
            else:
                self._waiting.add(job._session_lane, job)
        return record

    def _start(self, job: AnyJob, record: RecordedJob) -> None:
        self._follow(job, record)
        record.started_at = job.started_at
        self.started.append(record)
        session = self._unsettled.get(job)
        self._waits_no_more(job, session)
        for actor in _actors(job, session):
            self._running.add(actor, job)

    def _follow(self, job: AnyJob, record: RecordedJob) -> None:
        if job.state is not record.state and job.state not in TRANSITIONS[record.state]:
            self._blame(job, f"went from {record.state.name} to {job.state.name}")
        record.state = job.state
        record.name, record.priority = job.name, job.priority

    def _waits_no_more(self, job: AnyJob, session: SessionActor | None) -> None:
        self._in_line.discard(job._lane, job)
        if session is not None:
            self._waiting.discard(session, job)

    def _blame(self, job: AnyJob, what: str) -> None:
        self.violations.append(f"{_said(job)} {what}")

    # ---- checks of a start

    def _check_slots(self, job: AnyJob) -> None:
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        slots = self._slots(lane)
        self._compare(job, lane, slots, lane.limiter, shared=lane.config.limiter is not None)
        if session is not None:
            self._compare(job, session, len(self._running[session]), session.limiter)

    def _compare(
        self,
        job: AnyJob,
        actor: Actor,
        slots: int,
        limiter: trio.CapacityLimiter | None,
        shared: bool = False,
    ) -> None:
        self._peaks[actor.name] = max(self._peaks[actor.name], slots)
        total = actor.concurrency if limiter is None or not shared else limiter.total_tokens
        if slots > total:
            self._blame(job, f"took slot {slots} of {total} of {actor.name!r}")
        if limiter is None:  # of a session, and never read
            return
        lent = limiter.borrowed_tokens
        if slots > lent or (slots < lent and not shared):
            self._blame(
                job,
                f"started in {actor.name!r}, where {slots} jobs then hold slots "
                f"and the limiter has lent {lent}",
            )

    def _slots(self, lane: LaneActor) -> int:
        """How many slots of ``lane`` are in use: a running job may have lent its own."""
        return sum(job not in lane.without_slot for job in self._running[lane])

    def _check_order_in_session(self, job: AnyJob) -> None:
        session: SessionActor | None = job._session_lane
        if session is None:
            return
        if session.touched and not (session.room_line or session.passed_requests):
            return  # it has yet to look at what another instrument has just done
        mine = _in_session(job)
        better = [
            other
            for other in self._waiting[session]
            if other._place and _in_session(other) < mine  # without a place it is not due yet
        ]
        config = job._lane.config
        ordered_otherwise = config.fair or config.aging != math.inf
        for other in better:
            # A fair or aging lane may choose another job of its line.
            if other._lane is job._lane and not (other._arrival and ordered_otherwise):
                self._blame(job, f"overtook {_said(other)}, which comes before it in its session")
                return
        beside = session.concurrency - len(self._running[session])
        if better and len(better) > beside:
            self._blame(
                job,
                f"started while {_said(better[0])} waits, which comes before it in its session",
            )

    def _check_order_in_lane(self, job: AnyJob) -> None:
        lane: LaneActor = job._lane
        if lane.mailbox.count:
            return  # it has yet to look at what another instrument has just done
        fair, aging = lane.config.fair, lane.config.aging
        in_line = [other for other in self._in_line[lane] if other._arrival]
        equals = [other for other in in_line if other.priority == job.priority]
        urgency = max(_urgency(one, aging) for one in [job, *equals])
        for other in in_line:
            if other.priority != job.priority:
                overtaken = _urgency(other, aging) > urgency
            else:
                overtaken = other._arrival < job._arrival
                overtaken = overtaken and (not fair or other.owner == job.owner)
            if overtaken:
                self._blame(job, f"overtook {_said(other)}, which comes before it in its lane")

    # ---- faults of this moment

    def _stuck(self) -> Iterator[str]:
        for job in self._unsettled:
            scheduler = cast("Scheduler", job._keeper)
            if job.done:
                yield f"{_said(job)} has settled, and this recorder got no report"
            elif scheduler.closing.shut and not scheduler._nursery.child_tasks:
                yield f"{_said(job)} is {job.state.name} in lanes that have ended"
        for session, waiting in self._waiting.items():
            best = min(waiting, key=_in_session)
            free = len(self._running[session]) < session.concurrency and not session.rates
            if free and best._place and not best._arrival and _must_act(best, session):
                yield f"{_said(best)} waits in its session, which could forward it"
        for lane, in_line in self._in_line.items():
            free = self._slots(lane) < lane.concurrency and not (
                lane.rates or lane.group or lane.token_request or lane.slot_requests
            )
            for job in in_line:
                if free and job._arrival and _must_act(job, lane):
                    yield f"{_said(job)} waits in its lane, which could start it"


@final
class _Places(dict[A, dict[AnyJob, None]]):
    """Jobs by where they are; a place without any is not kept."""

    def __missing__(self, place: A) -> dict[AnyJob, None]:
        return {}

    def add(self, place: A, job: AnyJob) -> None:
        """Put ``job`` there."""
        self.setdefault(place, {})[job] = None

    def discard(self, place: A, job: AnyJob) -> None:
        """Take ``job`` away from there, if it is there."""
        jobs = self[place]
        jobs.pop(job, None)
        if not jobs:
            self.pop(place, None)


def _actors(job: AnyJob, session: SessionActor | None) -> list[Actor]:
    """The lanes in which ``job`` holds a slot while it runs."""
    return [job._lane] if session is None else [job._lane, session]


def _in_session(job: AnyJob) -> tuple[int, int]:
    """Where ``job`` stands among the waiting jobs of its session; the least comes first."""
    return -job.priority, job._place


def _urgency(job: AnyJob, aging: float) -> float | Fraction:
    """By how much ``job`` stands above others; only differences mean anything."""
    if aging == math.inf:
        return job.priority
    return job.priority - Fraction(job._waiting_since) / Fraction(aging)


def _must_act(job: AnyJob, actor: Actor) -> bool:
    """Whether ``actor``, which has a slot for ``job``, may not let it wait."""
    scheduler = cast("Scheduler", job._keeper)
    return not (scheduler.serving or scheduler.closing.shut or actor.paused)


def _said(job: AnyJob) -> str:
    where = "" if job.session is None else f" of session {job.session!r}"
    return f"job {job.id} {job.name!r}{where} in {job.lane!r}"
