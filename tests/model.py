"""What lanes promise, as lists and sorts: a model of them without Trio, and without lanes.

It is told what is done to lanes and what is seen of them, in order. It decides what must follow
(which jobs a clear cancels, when a body ends, which job may start, and that one must), and fails
when something else is seen. Where the contract leaves an order open it takes what is seen: of
bodies that end in the same moment, or of jobs that arrive in a lane in the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

State = Literal["WAITING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]


class Body(NamedTuple):
    """What a job's function does."""

    seconds: float = 0
    """How long it sleeps; with 0 it never blocks."""
    shielded: bool = False
    """Whether it does not hear of a cancellation meanwhile."""
    cleanup: float = 0
    """How long it goes on, shielded, after a cancellation that it has heard of."""
    fails: bool = False
    """Whether it raises at its end, else it returns."""


class End(NamedTuple):
    """A way in which a body may end."""

    when: float
    state: State
    error: str | None


@dataclass(eq=False)
class ModelJob:
    key: int
    session: str | None
    lane: str
    priority: int
    place: int  # by submission, or by its last change of priority
    submitted: float
    timeout: float
    queue_timeout: float
    body: Body
    state: State = "WAITING"
    error: str | None = None
    arrival: int | None = None  # the moment in which it came into its lane; None: it is not there
    started: float = inf
    called: bool = False
    inside: bool = False  # whether its body has begun and not ended
    cuts: list[End] = field(default_factory=list)  # what may end its body early
    crashed: float = inf  # when it was cancelled with all others

    @property
    def waits(self) -> bool:
        return self.state == "WAITING"

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    def ends(self) -> list[End]:
        """The ways in which its body may end, now that it has started: several at a tie."""
        body = self.body
        own = End(
            self.started + body.seconds,
            "FAILED" if body.fails else "SUCCEEDED",
            "Boom" if body.fails else None,
        )
        if not body.seconds or body.shielded:
            return [own]
        cuts = [*self.cuts, End(self.started + self.timeout, "FAILED", "JobTimeoutError")]
        first = min(cut.when for cut in cuts)
        possible = [own] if own.when <= first else []
        if first <= own.when:
            over = first + body.cleanup
            possible += [cut._replace(when=over) for cut in cuts if cut.when == first]
            if first < self.crashed <= over:  # the one cancellation or the other has ended it
                possible.append(End(over, "CANCELLED", "JobCancelledError"))
        return possible


@dataclass(eq=False)
class ModelLane:
    concurrency: int
    max_waiting: float = inf
    paused: bool = False
    generation: int = 0
    started: int = 0
    finished: int = 0


class Model:
    """All lanes, and all jobs that there ever were."""

    def __init__(self, lanes: dict[str, int], session_width: int, session_bound: float) -> None:
        self.lanes = {name: ModelLane(concurrency) for name, concurrency in lanes.items()}
        self.session_width = session_width
        self.session_bound = session_bound
        self.paused_sessions: set[str] = set()
        self.jobs: list[ModelJob] = []
        self.shut = False
        self.unseen: set[int] = set()  # the jobs that have just settled, until that is seen
        self._moment = 0
        self._places = 0

    # ---- looking

    def waiting(self, name: str | None = None) -> list[ModelJob]:
        return [job for job in self.jobs if job.waits and _within(job, name)]

    def running(self, name: str | None = None) -> list[ModelJob]:
        return [job for job in self.jobs if job.runs and _within(job, name)]

    def line(self, lane: str) -> list[ModelJob]:
        """The jobs that their sessions let start in ``lane``, best first."""
        return sorted(
            (job for job in self.waiting(lane) if job.arrival is not None),
            key=lambda job: (-job.priority, job.arrival),
        )

    def sessions(self) -> set[str]:
        """The sessions that are alive."""
        busy = {job.session for job in self.jobs if (job.waits or job.runs)}
        return {session for session in busy if session is not None} | self.paused_sessions

    def abandoned(self) -> int:
        return sum(job.inside and not job.runs for job in self.jobs)

    def has_slot(self, lane: str) -> bool:
        known = self.lanes[lane]
        return not known.paused and len(self.running(lane)) < known.concurrency

    # ---- what is done to lanes

    def submit(
        self,
        session: str | None,
        lane: str,
        priority: int,
        timeout: float,
        queue_timeout: float,
        body: Body,
        now: float,
    ) -> str | None:
        """A job is submitted; the error that this must raise, or None."""
        if lane not in self.lanes:
            return "UnknownLaneError"
        if queue_timeout and not self._room(session, lane):
            return "LaneFullError"
        self._begin()
        self._places += 1
        job = ModelJob(
            key=len(self.jobs),
            session=session,
            lane=lane,
            priority=priority,
            place=self._places,
            submitted=now,
            timeout=timeout,
            queue_timeout=queue_timeout,
            body=body,
        )
        self.jobs.append(job)
        if session is None:
            job.arrival = self._moment
        self._forward()
        if not queue_timeout and not (job in self.line(lane)[:1] and self.has_slot(lane)):
            self._settle(job, "CANCELLED", "QueueTimeoutError")
        return None

    def _room(self, session: str | None, lane: str) -> bool:
        name = f"session:{session}"
        full = len(self.waiting(lane)) >= self.lanes[lane].max_waiting or (
            session is not None and len(self.waiting(name)) >= self.session_bound
        )
        starts_at_once = self.has_slot(lane) and (
            session is None
            or (
                session not in self.paused_sessions
                and not self.waiting(name)
                and len(self.running(name)) < self.session_width
            )
        )
        return starts_at_once or not full

    def cancel(self, job: ModelJob, now: float) -> bool:
        self._begin()
        if job.waits:
            self._settle(job, "CANCELLED", "JobCancelledError")
        elif job.runs:
            job.cuts.append(End(now, "CANCELLED", "JobCancelledError"))
        else:
            return False
        return True

    def set_priority(self, job: ModelJob, priority: int) -> str | None:
        """The priority of a job is set; the error that this must raise, or None."""
        if not job.waits:
            return "RuntimeError"
        if priority == job.priority:
            return None
        self._begin()
        self._places += 1
        job.priority, job.place = priority, self._places
        self._forward(moved=job)
        if job.arrival is not None:
            job.arrival = self._moment
        return None

    def clear(self, name: str | None, owner: str | None) -> int:
        self._begin()
        cleared = [job for job in self.waiting(name) if owner in (None, job.session)]
        for job in cleared:
            self._settle(job, "CANCELLED", "LaneClearedError")
        return len(cleared)

    def reset(self, name: str | None, now: float) -> int:
        self._begin()
        for lane in self.lanes if name is None else {name} & self.lanes.keys():
            self.lanes[lane].generation += 1
        given_up = self.running(name)
        for job in given_up:
            job.cuts.append(End(now, "CANCELLED", "LaneResetError"))
            self._settle(job, "CANCELLED", "LaneResetError")
        return len(given_up)

    def pause(self, name: str | None, paused: bool) -> None:
        self._begin()
        for lane in self.lanes if name is None else {name} & self.lanes.keys():
            self.lanes[lane].paused = paused
        if name is not None and name.startswith("session:"):
            change = self.paused_sessions.add if paused else self.paused_sessions.discard
            change(name.removeprefix("session:"))
        self._forward()

    def configure(self, changes: dict[str, int | tuple[int, float] | None]) -> str | None:
        """Lanes are changed, added and removed; the error that this must raise, or None.

        A pair is a whole configuration: the concurrency, and how many jobs may wait.
        """
        for lane, change in changes.items():
            if change is None:
                if lane not in self.lanes:
                    return "UnknownLaneError"
                if self.waiting(lane) or self.running(lane):
                    return "ValueError"
        self._begin()
        for lane, change in changes.items():
            if change is None:
                del self.lanes[lane]
            elif isinstance(change, int):
                self.lanes.setdefault(lane, ModelLane(change)).concurrency = change
            else:
                known = self.lanes.setdefault(lane, ModelLane(change[0]))
                known.concurrency, known.max_waiting = change
        return None

    def crash(self, now: float) -> None:
        """The block of the lanes is left by an exception."""
        self._begin()
        self.shut = True
        for job in self.jobs:
            job.crashed = now
            job.cuts.append(End(now, "CANCELLED", "JobCancelledError"))
        for job in self.waiting():
            self._settle(job, "CANCELLED", "LanesClosedError")

    # ---- what is seen of them

    def saw_start(self, key: int, now: float) -> None:
        """A job took its slots."""
        job = self.jobs[key]
        self._nothing_overdue(before=now)
        assert not self.shut, f"{job} started in lanes that are shut"
        assert job.waits, f"{job} started"
        assert job.arrival is not None, f"{job} started, which its session had not let go"
        assert self.has_slot(job.lane), f"{job} started without a slot"
        best = self.line(job.lane)[0]
        assert (job.priority, job.arrival) == (best.priority, best.arrival), f"{job} passed {best}"
        job.state, job.started, job.arrival = "RUNNING", now, None
        self.lanes[job.lane].started += 1
        self._forward()

    def saw_call(self, key: int, now: float) -> None:
        """The body of a job began."""
        job = self.jobs[key]
        assert job.runs, f"{job} was called"
        assert not job.called, f"{job} was called twice"
        assert now == job.started, f"{job} was called late, at {now}"
        job.called = job.inside = True

    def saw_exit(self, key: int, now: float) -> None:
        """The body of a job ended."""
        job = self.jobs[key]
        assert now in [end.when for end in job.ends()], f"the body of {job} ended at {now}"
        job.inside = False

    def saw_settled(self, key: int, state: str, error: str | None, now: float) -> None:
        """A job settled."""
        job = self.jobs[key]
        if key in self.unseen:
            self.unseen.discard(key)
            assert (state, error) == (job.state, job.error), f"{job} settled as {state}, {error}"
            return
        self.nothing_can_start()  # one transition is over when the next one begins
        self._nothing_overdue(before=now)
        self._begin()
        end = End(now, state, error)  # type: ignore[arg-type]  # it is compared with such
        if job.waits:
            due = End(job.submitted + job.queue_timeout, "CANCELLED", "QueueTimeoutError")
            assert end == due, f"{job} settled as {end}"
        else:
            assert job.runs, f"{job} settled again"
            assert job.called, f"{job} settled before it was called"
            assert not job.inside, f"{job} settled before its body ended"
            assert end in job.ends(), f"{job} settled as {end}"
        self._settle(job, end.state, end.error)
        self.unseen.discard(key)

    def at_rest(self, now: float) -> None:
        """Every task is blocked: what was to happen up to now has happened."""
        self._nothing_overdue(before=now + 0.001)
        for job in self.running():
            assert job.called, f"{job} has not been called"

    def nothing_can_start(self) -> None:
        """A transition is over: whatever can start has started."""
        if not self.shut:
            for lane in self.lanes:
                assert not (self.has_slot(lane) and self.line(lane)), f"{lane} sleeps"

    def all_over(self) -> None:
        """The block of the lanes has been left."""
        left = [job for job in self.jobs if job.waits or job.runs or job.inside]
        assert not left

    # ---- the rules

    def _begin(self) -> None:
        self._moment += 1

    def _settle(self, job: ModelJob, state: State, error: str | None) -> None:
        if job.runs:
            self.lanes[job.lane].finished += 1
        job.state, job.error, job.arrival = state, error, None
        self.unseen.add(job.key)
        self._forward()

    def _forward(self, moved: ModelJob | None = None) -> None:
        """Each session has in global lanes as many jobs as it may still start: its best.

        One that comes takes the place of one that is taken back, if they are bound for the same
        lane; else it comes last. Equals of one session stay in order among themselves. One that
        has ``moved`` by its priority goes behind its new equals.
        """
        for session in {job.session for job in self.jobs if job.waits} - {None}:
            name = f"session:{session}"
            waiting = sorted(self.waiting(name), key=lambda job: (-job.priority, job.place))
            room = max(0, self.session_width - len(self.running(name)))
            best = waiting[: 0 if session in self.paused_sessions else room]
            gone = [job for job in reversed(waiting) if job.arrival is not None and job not in best]
            come = [job for job in best if job.arrival is None]
            for job in come:
                job.arrival = self._moment
            for job, other in zip(come, gone, strict=False):
                if job.lane == other.lane and job is not moved:
                    job.arrival = other.arrival
                    equals = [
                        mate
                        for mate in best
                        if (mate.lane, mate.priority) == (job.lane, job.priority)
                    ]
                    arrivals = sorted(mate.arrival or 0 for mate in equals)
                    for mate, arrival in zip(equals, arrivals, strict=True):
                        mate.arrival = arrival
            for job in gone:
                job.arrival = None

    def _nothing_overdue(self, before: float) -> None:
        for job in self.jobs:
            if job.waits:
                due = job.submitted + job.queue_timeout
                assert due >= before, f"{job} still waits at {before}"
            elif job.inside or job.runs:
                due = max(end.when for end in job.ends())
                assert due >= before, f"the body of {job} still runs at {before}"


def _within(job: ModelJob, name: str | None) -> bool:
    return name in (None, job.lane) or (
        job.session is not None and name == f"session:{job.session}"
    )
