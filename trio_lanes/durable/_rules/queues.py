"""Queues: where a job stands, and how it gets there and away. The rules of order, for every store.

Each session has a line, in order of ``place``. Its head keeps its place until it has ended: while
it runs, and between attempts. Each lane has a ready list for each priority, in order of ``ready``.
In it stand heads alone, and jobs without a session; so a session that has a million jobs waiting
is one entry, and goes to the tail with each job. A head is in exactly one of these conditions:
ready, running, parked between attempts, or dead and held.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from typing import Final

from .._contract.records import Ended, Opening, StoreRules
from .._contract.state import (
    CANCELLED,
    DEAD,
    ENDED,
    FAILED,
    PARKED,
    RUNNING,
    WAITING,
    DurableState,
    check_transition,
)
from .job_record import HOLDS_SLOT, LENT_SLOT, ON_LIST, SESSION_PAUSED, JobRecord
from .tables import Tables

PROMOTED_AT_ONCE: Final = 1_000
"""How many jobs that are due one look at the table finds at most."""


class Queues:
    """The lines of one store, as one instance sees them inside of one transaction.

    Attributes:
      now: the store's time at this transaction.
      accepted: the ids of what was accepted in it.
      ended: what ended or died in it, for those who wait.
      look: whether somebody may find something to claim that was not there before.
      look_elsewhere: the same, for instances other than this.
    """

    def __init__(self, tables: Tables, opening: Opening) -> None:
        self.tables: Final = tables
        self.opening: Final = opening
        self.now = 0.0
        self.accepted: list[int] = []
        self.ended: list[tuple[int, Ended]] = []
        self.look = False
        self.look_elsewhere = False

    @property
    def rules(self) -> StoreRules:
        """The rules of the store; this instance's own while no worker has set any."""
        return self.tables.rules() or self.opening.rules

    def forget_effects(self) -> None:
        """They were told, or did not happen."""
        self.accepted, self.ended = [], []
        self.look = self.look_elsewhere = False

    # ---- into line

    def append(self, job: JobRecord) -> None:
        """Give a job that is in no line its place at the tail, in the record alone."""
        if job.session is not None:
            behind = self.tables.head(job.session) is not None
            job.place = self.tables.next_number()
            if behind:
                return
        self._set_ready(job)

    def _set_ready(self, job: JobRecord, *, first: bool = False) -> None:
        """Give a head its place in the ready list, in the record alone."""
        # no two have one place, not even with one that is set aside: that comes back to its own
        number = self.tables.next_number()
        job.ready = -number if first else number
        job.shelf = ON_LIST
        if job.session is not None:
            until = self.tables.pause_of(job.session)
            if until is not None and until > self.now:
                job.shelf = SESSION_PAUSED
        self.look = True

    def list_ready(self, job: JobRecord, *, first: bool = False) -> None:
        """Put a waiting head on the ready list."""
        self._set_ready(job, first=first)
        self.tables.update(job, ready=job.ready, shelf=job.shelf)

    def list_next_head(self, session: str | None) -> None:
        """Somebody left that session's line: if its head is new, show it."""
        if session is not None:
            head = self.tables.head(session)
            if head is not None and head.state is WAITING and head.ready is None:
                self.list_ready(head)

    # ---- out of RUNNING, and out of line

    def advance(self, job: JobRecord, state: DurableState, **changes: object) -> None:
        """Change a job's state. Nothing else does."""
        check_transition(job.state, state)
        self.tables.update(job, state=state, **changes)

    def end(self, job: JobRecord, state: DurableState, outcome: str, *, attempt: int = 0) -> None:
        """It has ended, with one ``attempt`` more or none; it is remembered as long as was said."""
        self.advance(
            job,
            state,
            attempts=job.attempts + attempt,
            place=None,
            ready=None,
            due=self.now + self.rules.result_ttl,
            why=None,
            # a failed job can be requeued until it is forgotten
            payload=job.payload if state is FAILED else "",
            checkpoint=job.checkpoint if state is FAILED else None,
            outcome=outcome,
        )
        self.ended.append((job.id, Ended(state, outcome)))
        self.list_next_head(job.session)

    def mark_dead(self, job: JobRecord, error: str, *, attempt: int = 0) -> None:
        """It is dead: kept for a person, in its place if that closes its session."""
        held = self.rules.hold and job.session is not None
        self.advance(
            job,
            DEAD,
            attempts=job.attempts + attempt,
            place=job.place if held else None,
            outcome=error,
        )
        self.ended.append((job.id, Ended(DEAD, error)))
        self.list_next_head(job.session)

    def give_back(self, job: JobRecord) -> None:
        """It was running, and waits again, before all others."""
        if job.cancel is not None:
            self.end(job, CANCELLED, job.cancel)
        else:
            self.advance(job, WAITING, lent=HOLDS_SLOT)
            self.list_ready(job, first=True)

    def crash(self, runs: Collection[JobRecord]) -> None:
        """Give back the jobs that one process ran when it died."""
        holding = sum(job.lent != LENT_SLOT for job in runs)
        # the last first, since each goes to the front
        for job in sorted(runs, key=lambda job: -job.fence):
            # a run that has lent its slot waits for the others: it is no company of theirs
            self._crash(job, len(runs) if job.lent == LENT_SLOT else holding)

    def _crash(self, job: JobRecord, company: int) -> None:
        """Give back a job whose process died while it ran ``company`` jobs, this one included.

        A crash in company is no proof against any job, so only those alone make it dead.
        """
        self.tables.update(
            job,
            crashes=job.crashes + 1,
            alone=job.alone + (company == 1),
            company=min(job.company or company, company),
        )
        if job.cancel is None and job.alone >= self.rules.max_crashes:
            times = "once" if job.alone == 1 else f"{job.alone} times"
            message = f"the process that ran it died, {times}"
            self.mark_dead(job, json.dumps({"type": "crash", "message": message, "traceback": ""}))
        else:
            self.give_back(job)

    def postpone(self, job: JobRecord, delay: float, *, counts: bool, requeue: bool) -> None:
        """It was running, and will be again, but not now."""
        if job.cancel is not None:
            self.end(job, CANCELLED, job.cancel)
            return
        leaves = requeue and job.session is not None
        self.advance(
            job,
            PARKED,
            why="retry",
            due=self.now + delay,
            attempts=job.attempts + counts,
            company=0,
            place=None if leaves else job.place,
            lent=HOLDS_SLOT,
        )
        if leaves:
            self.list_next_head(job.session)

    def together(self, job: JobRecord) -> int | float:
        """How many jobs an instance may run while it runs ``job``, this one included.

        Fewer than any number only for a suspect: a job that its next crash could make dead. Then
        it is half of those that ran in the last crash, so that each crash halves the suspects.
        """
        if not job.company or job.crashes < max(1, self.rules.max_crashes - 1):
            return math.inf
        return max(1, job.company // 2)

    # ---- by the clock

    def promote(self) -> None:
        """Have the jobs that are due wait, and end the pauses that are over."""
        self._promote(self.tables.parked_due(self.now, PROMOTED_AT_ONCE))
        for session in self.tables.pauses_due(self.now):
            self.resume_session(session)

    def promote_session(self, session: str) -> None:
        """Have the jobs of a session that are due stand in its line, before others join it.

        Without it, a job that has fallen due while no worker took a step would be overtaken.
        """
        while due := self.tables.parked_due(self.now, PROMOTED_AT_ONCE, session):
            self._promote(due)

    def _promote(self, due: Iterable[JobRecord]) -> None:
        for job in due:
            if job.place is None:
                self.append(job)
            else:
                self._set_ready(job)
            self.advance(
                job,
                WAITING,
                place=job.place,
                ready=job.ready,
                shelf=job.shelf,
                due=None,
                why=None,
            )

    def resume_session(self, session: str) -> None:
        """End the pause of that session; its head has kept its place."""
        self.tables.put_pause(session, None)
        head = self.tables.head(session)
        if head is not None and head.shelf == SESSION_PAUSED and head.ready is not None:
            self.tables.update(head, shelf=ON_LIST)
            self.look = True

    def next_due(self, *, also: float | None = None) -> float | None:
        """Seconds until something falls due by itself, or it is ``also``; None: nothing will."""
        due = self.tables.next_due()
        ends = [
            limit.paused_until
            for limit in self.tables.lanes().values()
            if limit.paused_until is not None and self.now < limit.paused_until < math.inf
        ]
        ends += [time for time in (due, also) if time is not None]
        return max(0.0, min(ends) - self.now) if ends else None

    def is_over(self, job: JobRecord) -> bool:
        """Whether it is to be forgotten, and only no step has been taken since."""
        return job.state in ENDED and job.due is not None and job.due <= self.now

    def known(self, id: int) -> JobRecord | None:
        """The job, if it is not to be forgotten."""
        job = self.tables.get(id)
        return None if job is None or self.is_over(job) else job

    def running_of(self, id: int, fence: int) -> JobRecord | None:
        """The job, if that fence is still its run's."""
        job = self.tables.get(id)
        return job if job is not None and job.state is RUNNING and job.fence == fence else None
