"""A session lane: it forwards the jobs of one session to their global lanes, in order.

Theory of operation
-------------------
A job that arrives gets a *place* in the session: a rank, lower is better (`rank`). It waits in the
``backlog``, and is *forwarded* when the session may start it: then it leaves the backlog for the
line of its global lane, and gets an *arrival* there. Forwarded is not started. The *window* of the
session is the number of jobs that it may still start: its concurrency less its running jobs. These
invariants hold whenever the session has been served:

* at most ``window`` jobs are forwarded, and they are the best of the waiting jobs that are due;
* a better job that arrives replaces the worst forwarded job, which goes back into the backlog with
  its place: if both are bound for the same global lane, the better job inherits the arrival;
* a paused session has no job forwarded;
* a session with rate limits has at most one job forwarded, the next that is charged, and only when
  the limits let it start;
* a running job that is *readmitted* stands before all waiting jobs of its priority, and takes
  nothing of the window, since it counts among the running jobs.

So a session of one at a time has one job in the lines of global lanes, however many jobs wait.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import trio

from .._config.names import SESSION_PREFIX
from .._queue.backlog import LAST, Backlog, rank
from .actor import NOTHING_ANNOUNCED, Actor, Turns, changed_by_others
from .job import AnyJob, LaneOfJob
from .line import Displacement
from .mailbox import Mailbox
from .options import LaneConfig

if TYPE_CHECKING:
    from .lane import LaneActor
    from .wait import RoomRequest

UNUSED: Final[Any] = MappingProxyType({})
"""In place of a table of a session, until it is first written: most sessions have few jobs, and a
table weighs as much as a job. It cannot be written itself."""

MAX_MAILBOXES: Final = 100
"""How many unused mailboxes are kept for later sessions. A peak of sessions leaves no more."""

Mailboxes = deque[Mailbox]


def mailbox_pool() -> Mailboxes:
    """A pool for the mailboxes that no session uses now."""
    return deque(maxlen=MAX_MAILBOXES)


Forward: TypeAlias = tuple[AnyJob, int, bool]
"""The answer of `next_forward`: the job; its arrival in its global lane, or 0 for a new one; and
whether there is more to forward at once. A bare tuple, since it is made on every job's way."""


@final
class SessionActor(Actor):
    """The lane of one session: made when mail for it arrives, gone when its last job has ended.

    It has a mailbox while there is mail, and a limiter once the limiter has been read: with many
    thousand sessions, these two would take most of a session's memory. The actor of a session that
    is gone can become the actor of the next session that comes.
    """

    __slots__ = (
        "_mail_came",
        "_mailboxes",
        "_vacated",
        "backlog",
        "delayed",
        "forwarded",
        "is_ranked",
        "key",
        "passed_requests",
        "readmitting",
        "running",
        "waiting",
    )

    waiting: int

    def __init__(self, key: str, config: LaneConfig, turns: Turns, mailboxes: Mailboxes) -> None:
        super().__init__(turns, config)
        self._mailboxes = mailboxes
        self._mail_came = False  # since `next_forward` last returned None
        # The forwarded job that was taken back last, and its arrival: `next_forward` gives its
        # place to the better job. `withhold` fills it too, for the `next_forward` that comes after
        # `replace`.
        self._vacated: tuple[AnyJob, int] | None = None
        self.key = key
        self.backlog: Backlog[AnyJob] = Backlog()  # waiting, and not forwarded
        self.waiting = 0
        self.passed_requests = 0  # requests for room that have passed its line
        self.forwarded: dict[int, AnyJob] = {}  # {place: job that waits, and is forwarded}
        self.delayed: dict[int, AnyJob] = UNUSED  # {id: job that waits, and is not due yet}
        self.is_ranked = False  # whether it ever had a job of another priority than 0
        self.running: dict[AnyJob, None] = UNUSED
        # {job that runs and is to be started again: whether it is in the line of its lane}
        self.readmitting: dict[AnyJob, bool] = UNUSED

    def count_passed_requests(self, change: int) -> None:
        """One request for room more or less stands in the line of a global lane."""
        self.passed_requests += change

    def reuse_for(self, key: str) -> None:
        """Be the lane of the session ``key`` from now on: it was that of a session that is gone."""
        self.key = key
        self.is_ranked, self.announced = False, NOTHING_ANNOUNCED
        self.account = None  # if it has one yet, no job waits for it

    @property
    def name(self) -> str:
        return SESSION_PREFIX + self.key

    @property
    def active(self) -> int:
        return len(self.running)

    def waiting_jobs(self) -> Iterator[AnyJob]:
        self.step()
        return chain(self.forwarded.values(), self.backlog.items.values(), self.delayed.values())

    def running_jobs(self) -> list[AnyJob]:
        return sorted(self.running, key=lambda job: job.id)

    def watch_limiter(self, limiter: trio.CapacityLimiter) -> None:
        """Keep ``limiter`` up to date from now on: its borrowers are the running jobs."""
        limiter.total_tokens = math.inf  # more may run than it allows by now
        for job in self.running:
            limiter.acquire_on_behalf_of_nowait(job)
        limiter.total_tokens = self.concurrency
        self.limiter = limiter

    # ---- a job arrives

    def receive(self, job: AnyJob, order: int) -> None:
        """Give ``job`` its place, behind its equals.

        The job is mail until the next step. A job that could not be forwarded now, since the window
        is full of better jobs, goes straight into the backlog, and needs no step.
        """
        if job._priority:
            order = rank(job._priority, order)
            self.is_ranked = True
        job._place = order
        self.waiting += 1
        forwarded = self.forwarded
        if (
            not self.touched
            and len(forwarded) + len(self.running) >= self.concurrency
            and not (self.is_ranked and forwarded and order < max(forwarded))
        ):
            self.backlog.add(order, job)
            return
        if self.mailbox is None:
            self.mailbox = self._mailboxes.pop() if self._mailboxes else Mailbox()
        self.mailbox.send(job)
        self.mailbox.count += 1
        self._mail_came = True
        if not self.touched:
            self.touched = True
            self.turns.append(self)

    def postpone(self, job: AnyJob) -> None:
        """Keep ``job`` until its delay is over; it has no place until then."""
        if self.delayed is UNUSED:
            self.delayed = {}
        if job._options.coalesce is not None:  # its place will be before those of later jobs
            self.is_ranked = True
        job._place = 0
        self.delayed[job.id] = job
        self.waiting += 1

    def forget_delay(self, job: AnyJob) -> None:
        """The delay of ``job`` is over, or the job was withdrawn."""
        del self.delayed[job.id]
        self.waiting -= 1

    # ---- which jobs are forwarded

    def step(self) -> None:
        mailbox = self.mailbox
        if mailbox is not None:
            while mailbox.count:
                mailbox.count -= 1
                job = mailbox.receive()
                self.backlog.add(job._place, job)
            self._mailboxes.append(mailbox)
            self.mailbox = None

    def next_forward(self, now: float) -> Forward | None:
        """Take out the job to forward now, or return None. The loop asks while there is more.

        Forwarded jobs that the session may not start any more are taken back. If the window is full
        and a better job waits, the worst forwarded job is taken back as well; if the better job is
        bound for the same lane, it gets the arrival of that one.
        """
        backlog, forwarded, mailbox = self.backlog, self.forwarded, self.mailbox
        if mailbox is not None:
            is_open = self.concurrency and not (self.running or self.paused or self.rates.units)
            if is_open and mailbox.count == self.waiting == 1:  # it passes at once
                mailbox.count = 0
                job = mailbox.receive()
                forwarded[job._place] = job
                self._mailboxes.append(mailbox)
                self.mailbox = None
                return job, 0, False
            self.step()
        window = 0 if self.paused else self.concurrency - len(self.running)
        if self.rates.units or self.readmitting:
            head = self._charged_next(window, now) if self.rates.units else None
            again = self._next_readmitted(head)
            if again is not None:
                return again, 0, True  # it is in no backlog, and others may follow it
            if self.rates.units:  # the next that is charged goes alone
                window = 0 if head is None or head in self.readmitting else min(window, 1)
        free = window - len(forwarded)
        if free <= 0:
            if free < 0:
                # A lowered limit or a pause: the best stay, as many as may start.
                for place in sorted(forwarded)[max(int(window), 0) :]:
                    self._take_back(place)
            elif self._mail_came and self.is_ranked and forwarded and backlog.items:
                worst = max(forwarded)
                if worst > backlog.best_rank():
                    self._vacated = self._take_back(worst)
                    free = 1
        if free <= 0 or not backlog.items:
            self._mail_came = False
            self._vacated = None  # the place goes to no job
            return None
        job = backlog.pop()
        arrival = 0
        if self._vacated is not None:
            arrival = self._inherit(*self._vacated, job)
            self._vacated = None
        forwarded[job._place] = job
        return job, arrival, (self._mail_came or free > 1) and bool(backlog.items)

    def _take_back(self, place: int) -> tuple[AnyJob, int]:
        """Put a forwarded job into the backlog; return the job, and its former arrival."""
        job = self.forwarded.pop(place)
        lane: LaneOfJob = job._lane
        arrival = lane.remove(job)
        self.backlog.add(place, job)
        return job, arrival

    def _inherit(self, displaced: AnyJob, arrival: int, job: AnyJob) -> int:
        """Return the arrival that ``job`` takes from ``displaced``, whose place it has, or 0."""
        way = self._displacement(displaced, arrival, job, ())
        lane: LaneOfJob = job._lane
        for peer, earlier in way.moved.items():
            lane.move(peer, earlier)
        return 0 if way.arrival == LAST else way.arrival

    def _displacement(
        self, displaced: AnyJob, arrival: int, job: AnyJob, leave: Sequence[AnyJob]
    ) -> Displacement:
        """Return how jobs make way for ``job``, which has the place of ``displaced``.

        It inherits the arrival if it is bound for the same lane. Forwarded equals of ``job`` come
        before it in this session: they move up if their arrivals were later.
        """
        moved: dict[AnyJob, int] = {}
        if job is displaced or job._lane is not displaced._lane:
            return Displacement(leave=leave)
        for place in sorted(self.forwarded):
            peer = self.forwarded[place]
            is_equal = peer._lane is job._lane and peer._priority == job._priority
            if is_equal and peer is not displaced and peer._arrival > arrival:
                moved[peer], arrival = arrival, peer._arrival
        return Displacement(arrival, leave, moved)

    def _next_readmitted(self, head: AnyJob | None) -> AnyJob | None:
        """Return a readmitted job that is to enter the line of its lane, or None.

        Readmitted jobs that may not be started now are taken out of these lines. Under rate limits
        only ``head``, the next that is charged, may be.
        """
        for job, in_line in self.readmitting.items():
            may_start = not self.paused and (head is job or not self.rates.units)
            if may_start is not in_line:
                self.readmitting[job] = may_start
                if may_start:
                    return job
                lane: LaneOfJob = job._lane
                lane.withhold(job)
        return None

    def _charged_next(self, window: int | float, now: float) -> AnyJob | None:
        """Return the best of the jobs that only a rate limit stops; None if the limit stops it."""
        self.wake_at = math.inf
        heads = {rank(job._priority, -LAST): job for job in reversed(self.readmitting)}
        if window > 0:
            heads |= self.forwarded
            if self.backlog.items:
                heads[self.backlog.best_rank()] = self.backlog.best()
        if not heads:
            return None
        head = heads[min(heads)]
        when = self.rates.ready_at(head._costs, now)
        if when > now:
            self.rate_until = when
            self.wake_at = self.rates.look_at(when, now)
            return None
        return head

    def remove(self, job: AnyJob) -> None:
        """Take ``job``, which waits, out of this session and out of the line of its lane."""
        self.step()
        if self.forwarded.pop(job._place, None) is not None:
            lane: LaneOfJob = job._lane
            lane.remove(job)
        else:
            self.backlog.remove(job._place)
        self.waiting -= 1
        self.touch()

    def lose_count_of_one(self) -> None:
        """A job that waits was withdrawn after an act broke off: only its number is known."""
        self.waiting -= 1

    def withhold(self, job: AnyJob) -> None:
        """Take ``job``, which waits, out, to `replace` it with another priority."""
        self.step()
        if job._place in self.forwarded:
            self._vacated = self._take_back(job._place)
        self.backlog.remove(job._place)

    def replace(self, job: AnyJob, order: int) -> None:
        """Put ``job`` in again, behind the jobs of its new priority.

        If ``job`` was forwarded, the best job now takes its place in the line of its lane.
        """
        self.is_ranked = True
        job._place = rank(job._priority, order)
        self.backlog.add(job._place, job)
        if self._vacated is None and self.forwarded and job._place < (worst := max(self.forwarded)):
            self._take_back(worst)  # ``job`` goes behind its new equals in the global lane
        self.touch()

    # ---- jobs start and end

    def started(self, job: AnyJob) -> None:
        """``job``, which was forwarded, runs."""
        del self.forwarded[job._place]
        if self.running is UNUSED:
            self.running = {}
        self.running[job] = None
        if self.limiter is not None:
            try:
                self.limiter.acquire_on_behalf_of_nowait(job)
            except trio.WouldBlock as error:
                raise changed_by_others(self.name) from error
        self.waiting -= 1
        if self.room_line or self.passed_requests or self.watched:
            self.touch()

    def charge(self, job: AnyJob, now: float) -> None:
        """Charge its rates for the start of ``job``."""
        self.rates.charge(job._costs, now)
        self.touch()  # it may forward its next job

    def ended(self, job: AnyJob) -> None:
        """``job`` has ended."""
        del self.running[job]
        if self.limiter is not None:
            self.limiter.release_on_behalf_of(job)
        if not self.touched:  # as `touch` does, on every job's way
            self.touched = True
            self.turns.append(self)

    def readmit(self, job: AnyJob) -> None:
        """``job``, which runs and keeps its slot here, is to be started again."""
        if self.readmitting is UNUSED:
            self.readmitting = {}
        self.readmitting[job] = False
        self.touch()

    def readmitted(self, job: AnyJob) -> None:
        """``job`` was started again, or does not wait for that any more."""
        del self.readmitting[job]
        self.touch()

    # ---- a job that would arrive now

    @property
    def is_held(self) -> bool:
        """Whether it is paused, or runs as many jobs as it may: then no new job can start."""
        return self.paused or self.active >= self.concurrency

    def lets_start(self, job: AnyJob, now: float) -> bool:
        """Whether the session would let ``job`` start if it were submitted now."""
        if self.paused:
            return False
        place = rank(job._priority, LAST)
        before = sum(other < place for other in self.forwarded)
        if self.rates.units:
            outranked = self.backlog.items and self.backlog.best_rank() < place
            if before or outranked or self.readmitting:
                return False
            if self.rates.ready_at(job._costs, now) > now:
                return False
        return self.active + before < self.concurrency

    # ---- the order of the jobs

    def _waiting_before(self, place: int) -> list[AnyJob]:
        self.step()
        waiting = {**self.forwarded, **self.backlog.items}
        return [waiting[other] for other in sorted(waiting) if other < place]

    def before(self, job: AnyJob) -> list[AnyJob]:
        """Return the jobs that come before ``job``, which waits, or is readmitted."""
        if job in self.readmitting:
            return self.ahead_of_readmitted(job)
        return self.readmitted_before(job) + self._waiting_before(job._place)

    def newcomer_before(self, job: AnyJob) -> list[AnyJob]:
        """Return the jobs for which ``job``, if it were submitted now, would have to wait."""
        before = self._waiting_before(rank(job._priority, LAST))
        before = self.readmitted_before(job) + before
        return before if self.rates.units or self.active + len(before) >= self.concurrency else []

    def displacement_for(self, job: AnyJob) -> Displacement:
        """Return how other jobs would make way if ``job`` were submitted and forwarded now."""
        leave: list[AnyJob] = []
        window = self.concurrency - self.active
        if self.rates.units:
            leave = [other for other, in_line in self.readmitting.items() if in_line]
            window = min(window, 1)
        if not self.forwarded or len(self.forwarded) < window:
            return Displacement(leave=leave)
        displaced = self.forwarded[max(self.forwarded)]
        leave.append(displaced)
        return self._displacement(displaced, displaced._arrival, job, leave)

    def readmitted_before(self, job: AnyJob) -> list[AnyJob]:
        """Return the jobs that are readmitted before ``job``, which waits; [] without rates."""
        if not self.rates.units:
            return []
        return [one for one in self.readmitting if one._priority >= job._priority]

    def ahead_of_readmitted(self, job: AnyJob) -> list[AnyJob]:
        """Return the jobs that start before ``job``, which is readmitted; [] without rates."""
        if not self.rates.units:
            return []
        again = sorted(self.readmitting, key=lambda one: -one._priority)
        before = list(takewhile(lambda one: one is not job, again))
        if self.active < self.concurrency:
            before += self._waiting_before(rank(job._priority, -LAST))
        return before

    def room_requests(self, lanes: Iterable[LaneActor]) -> list[RoomRequest]:
        """Return the requests that have room in this session, and wait for room in ``lanes``."""
        if not self.passed_requests:
            return []
        lines = [lane.room_line.values() for lane in lanes if lane.room_line]
        return [request for line in lines for request in line if request.session is self]
