"""A session lane: it forwards the jobs of one session to their global lanes, in order.

Forwarded is not started. At any time a session has at most as many jobs in global lanes as it may
still start, and those are its best: when a better one arrives, the worst of them is taken back.
So a session with a hundred thousand waiting jobs stands in a global lane's line with one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Final, final

import trio

from .actor import Actor, Floor
from .._queue.backlog import LAST, Backlog, rank
from .options import LaneConfig
from .job import AnyJob
from .mailbox import Mailbox
from .._config.names import SESSION_PREFIX

if TYPE_CHECKING:
    from .._waiting.room import Entrant

MOST_SPARES: Final = 100
"""Of each kind: enough for comings and goings, and no peak kept for ever."""

WHOEVER: Final = "whoever runs"
"""The borrower in a limiter of one token. A session has such a limiter exactly while a job of it
runs, so the token stays taken while the limiter goes from session to session: giving it back and
taking it again would be 8 in 100 of what a job that does nothing costs."""


@final
class Spares:
    """Limiters and mailboxes that no session uses now."""

    def __init__(self) -> None:
        self.limiters: Final[deque[trio.CapacityLimiter]] = deque(maxlen=MOST_SPARES)
        """Of one token, which `WHOEVER` has."""
        self.mailboxes: Final[deque[Mailbox]] = deque(maxlen=MOST_SPARES)


@final
class SessionActor(Actor):
    """The lane of one session: made when mail for it arrives, gone when its last job has ended.

    It has a mailbox while there is mail, and a limiter while something runs: with many thousand
    sessions waiting for their turn, these are most of what a session would weigh.
    """

    __slots__ = (
        "_has_news",
        "_spares",
        "backlog",
        "delayed",
        "entering",
        "forwarded",
        "is_ranked",
        "key",
        "mailbox",
        "readmitting",
        "running",
    )

    def __init__(self, floor: Floor, spares: Spares, key: str, config: LaneConfig) -> None:
        super().__init__(floor, floor.session_turns, config)
        self._spares = spares
        self.key = key
        self.mailbox: Mailbox | None = None
        self._has_news = False  # whether mail has come since its last step
        self.backlog: Backlog[AnyJob] = Backlog()  # waiting, and not forwarded
        self.forwarded: dict[int, AnyJob] = {}  # {rank in this session: waiting, and forwarded}
        self.delayed: dict[int, AnyJob] = {}  # {id: waiting, and not due yet}
        self.is_ranked = False  # whether priorities other than 0 were ever seen in it
        self.running: dict[AnyJob, object] = {}  # {job that runs: who has borrowed its token}
        self.entering = 0  # jobs of it that wait for room in their global lanes
        # Running, and to be started again: in the lines of their lanes if they have an arrival.
        self.readmitting: dict[AnyJob, None] = {}

    @property
    def name(self) -> str:
        return SESSION_PREFIX + self.key

    def waiting_jobs(self) -> Iterator[AnyJob]:
        self._take_mail()
        return chain(self.forwarded.values(), self.backlog.items.values(), self.delayed.values())

    def entrants(self) -> list[Entrant]:
        """The jobs of it that have their room here, and wait for room in their global lanes."""
        if not self.entering:
            return []
        lines = [lane.room_line for lane in self.floor.lanes.values() if lane.room_line]
        return [one for line in lines for one in line.values() if one.session is self]

    def stands_behind(self, job: AnyJob) -> bool:
        """Whether nothing here changes by the arrival of ``job``; then it has its place in line.

        That is so of all but the first few jobs of a busy session, which are spared a step.
        """
        forwarded = self.forwarded
        if len(forwarded) + self.active < self.concurrency:
            return False
        if forwarded and job._place < max(forwarded):
            return False
        self.backlog.add(job._place, job)
        return True

    def send(self, job: AnyJob) -> None:
        """Put ``job`` into its mailbox; it is looked at in the next step."""
        if self.mailbox is None:
            spare = self._spares.mailboxes
            self.mailbox = spare.pop() if spare else Mailbox()
        self.mailbox.send(job)
        self._has_news = True

    def _add(self, job: AnyJob) -> None:
        self.backlog.add(job._place, job)

    def _take_mail(self) -> None:
        mailbox = self.mailbox
        if mailbox is not None:
            mailbox.empty_into(self._add)
            self._spares.mailboxes.append(mailbox)
            self.mailbox = None

    def before(self, job: AnyJob) -> list[AnyJob]:
        """The jobs that come before ``job``, which has its place in line."""
        self._take_mail()
        waiting = {**self.forwarded, **self.backlog.items}
        before = [waiting[place] for place in sorted(waiting) if place < job._place]
        return self.readmitted_before(job) + before

    def readmitted_before(self, job: AnyJob) -> list[AnyJob]:
        """The jobs that are readmitted before a job that waits: with rates, one at a time."""
        if not self.rates.units:
            return []
        return [one for one in self.readmitting if one._priority >= job._priority]

    def remove(self, job: AnyJob) -> None:
        """Take ``job``, which waits, out of line, and out of that of its global lane."""
        self._take_mail()
        if self.forwarded.pop(job._place, None) is not None:
            job._lane.remove(job)
        else:
            self.backlog.remove(job._place)

    def step(self) -> None:
        backlog, forwarded = self.backlog, self.forwarded
        has_news, self._has_news = self._has_news, False
        if has_news:
            self._take_mail()
        room = self._room()
        while backlog.items and len(forwarded) < room:
            self.floor.forward(backlog.pop(), self.floor.next_arrival())
        if len(forwarded) > room:
            for place in sorted(forwarded)[max(int(room), 0) :]:
                self._take_back(place)
        if has_news and forwarded and backlog.items and backlog.best_rank() < max(forwarded):
            self._put_best_forward()
        if self.watched and not (self.waiting and self.active):
            self.floor.watches.look_at(self)
        if not self.waiting and not self.active and not self.entering and self.is_idle:
            self.floor.retire(self)

    def _room(self) -> int | float:
        """How many jobs may be forwarded now; negative if more run than may."""
        room = 0 if self.paused else self.concurrency - self.active
        if self.rates.units or self.readmitting:
            room = self._admit(room)
        return room

    def _admit(self, room: int | float) -> int | float:
        """How many may be forwarded: with rates only the one that is charged next, if it may be.

        Those that are readmitted need no room, but are asked for all else.
        """
        let: Collection[AnyJob] = self.readmitting
        if self.rates.units:
            head = self._charged_next(room)
            let = [job for job in let if job is head]
            room = 0 if head is None or let else min(room, 1)
        for job in self.readmitting:
            if self.paused or job not in let:
                if job._arrival:
                    job._lane.withhold(job)
            elif not job._arrival:
                job._lane.readmit(job)
        return room

    def _charged_next(self, room: int | float) -> AnyJob | None:
        """The best of those that may start as far as its limit goes, if the rates let it."""
        heads = {rank(job._priority, -LAST): job for job in reversed(self.readmitting)}
        if room > 0:
            heads |= self.forwarded
            if self.backlog.items:
                heads[self.backlog.best_rank()] = self.backlog.best()
        head = heads[min(heads)] if heads else None
        if head is not None:
            when = self.rates.ready_at(head._costs, self.floor.now)
            if when > self.floor.now:
                self.wait_for_rate(when)
                return None
        self.wait_for_no_rate()
        return head

    @property
    def is_held(self) -> bool:
        """Whether no job of it can start, whichever comes: it is paused, or runs all it may."""
        return self.paused or self.active >= self.concurrency

    def before_again(self, job: AnyJob) -> list[AnyJob]:
        """Those that are let go before ``job``, which is readmitted: with rates, one at a time."""
        if not self.rates.units:
            return []
        again = sorted(self.readmitting, key=lambda one: -one._priority)
        before = list(takewhile(lambda one: one is not job, again))
        if self.active < self.concurrency:
            self._take_mail()
            place = rank(job._priority, -LAST)
            waiting = {**self.forwarded, **self.backlog.items}
            before += [waiting[theirs] for theirs in sorted(waiting) if theirs < place]
        return before

    def lets_start(self, job: AnyJob) -> bool:
        """Whether ``job``, if it came now, would be forwarded, and could start then."""
        if self.paused:
            return False
        place = rank(job._priority, LAST)
        before = sum(other < place for other in self.forwarded)
        if self.rates.units and (before or not self._charges_now(job, place)):
            return False
        return self.active + before < self.concurrency

    def _charges_now(self, job: AnyJob, place: int) -> bool:
        if self.readmitting or (self.backlog.items and self.backlog.best_rank() < place):
            return False
        now = trio.current_time()
        return self.rates.ready_at(job._costs, now) <= now

    def look_out_for(self, job: AnyJob) -> None:
        """Look again when the rates let ``job`` start, which may not wait."""
        now, timer = trio.current_time(), self._rate_timer
        when = self.rates.ready_at(job._costs, now)
        if when > now and not (timer is not None and timer.is_set and timer.when <= when):
            self.look_again_for_head(when)

    def readmit(self, job: AnyJob) -> None:
        """``job``, which runs and keeps its slot here, is to be started again."""
        job._arrival = 0
        self.readmitting[job] = None
        self.floor.touch(self)

    def _put_best_forward(self) -> None:
        """Let better jobs take the places of those that were forwarded before they came."""
        backlog, forwarded = self.backlog, self.forwarded
        while forwarded and backlog.items and backlog.best_rank() < (worst := max(forwarded)):
            better = backlog.pop()
            self._replace(*self._take_back(worst), better)

    def _replace(self, outdone: AnyJob, arrival: int, job: AnyJob) -> None:
        """Forward ``job``; if it is bound for the lane of ``outdone``, with its ``arrival``.

        Its equals from this session were before it, so they move up if they had come later.
        """
        lane = job._lane
        if job is outdone or lane is not outdone._lane:
            self.floor.forward(job, self.floor.next_arrival())
            return
        for place in sorted(self.forwarded):
            equal = self.forwarded[place]
            if (
                equal._lane is lane
                and equal._priority == job._priority
                and equal._arrival > arrival
            ):
                arrival = lane.move(equal, arrival)
        self.floor.forward(job, arrival)

    def _take_back(self, place: int) -> tuple[AnyJob, int]:
        job = self.forwarded.pop(place)
        job._lane.remove(job)
        self.floor.touch(job._lane)  # which may have offered it to its group
        arrival, job._arrival = job._arrival, 0
        self.backlog.add(place, job)
        return job, arrival

    def move(self, job: AnyJob, priority: int, place: int) -> None:
        """Give ``job``, which waits, another priority and another place.

        If that lets another job be the best, it takes the place of this one in its global lane,
        unless a rate of this session stops it: then the next step takes back what is forwarded.
        """
        self.is_ranked = True
        self._take_mail()
        was_forwarded = job._place in self.forwarded
        arrival = self._take_back(job._place)[1] if was_forwarded else 0
        self.backlog.remove(job._place)
        job._priority, job._place = priority, rank(priority, place)
        self.backlog.add(job._place, job)
        if was_forwarded:
            if len(self.forwarded) < self._room():
                self._replace(job, arrival, self.backlog.pop())
        elif self.forwarded and job._place < (worst := max(self.forwarded)):
            self._take_back(worst)  # its arrival is not reused: this job goes behind its new equals
            if len(self.forwarded) < self._room():
                self.floor.forward(self.backlog.pop(), self.floor.next_arrival())

    def running_jobs(self) -> list[AnyJob]:
        return sorted(self.running, key=lambda job: job.id)

    def started(self, job: AnyJob) -> None:
        """``job``, which was forwarded, has its slot here."""
        del self.forwarded[job._place]
        self.active += 1
        if self.limiter is None and self.concurrency == 1:
            spare = self._spares.limiters
            self.limiter = spare.pop() if spare else _limiter_of_one()
            self.running[job] = WHOEVER
            return
        if self.limiter is None:
            self.limiter = trio.CapacityLimiter(self.concurrency)
        self.limiter.acquire_on_behalf_of_nowait(job)
        self.running[job] = job

    def ended(self, job: AnyJob) -> None:
        """``job`` gives its slot here back."""
        assert self.limiter is not None
        borrower = self.running.pop(job)
        self.active -= 1
        if borrower is WHOEVER and self.concurrency == 1 and not self.active:
            self._spares.limiters.append(self.limiter)
        else:
            self.limiter.release_on_behalf_of(borrower)
        if not self.active:
            self.limiter = None


def _limiter_of_one() -> trio.CapacityLimiter:
    limiter = trio.CapacityLimiter(1)
    limiter.acquire_on_behalf_of_nowait(WHOEVER)
    return limiter
