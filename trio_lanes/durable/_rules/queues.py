"""Queues of sessions and ready lists of lanes: the rules of order, for every store of tables.

Each session has a queue, in order of ``place``. Each lane has a ready list for each priority and
each handler's name, in order of ``ready``. A ready list holds heads of sessions, and jobs without a
session. So a session with a million waiting jobs is one entry, which goes to the tail of the list
after each job; and a million jobs of handlers that an instance lacks cost its claims nothing.

The theory and its invariants are at the head of `engine`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Final

from .._contract.records import Ended, InstanceInfo, Opening, Postponed, StoreRules
from .._contract.state import (
    CANCELLED,
    DEAD,
    ENDED,
    EXPIRED,
    FAILED,
    PARKED,
    RUNNING,
    WAITING,
    DurableState,
    check_transition,
)
from . import fair
from .history import ended, error_type, in_one_line
from .job_record import HOLDS_SLOT, LENT_SLOT, ON_LIST, SESSION_PAUSED, JobRecord
from .lane_limits import label_of
from .tables import INSTANCES, LIMITS, PAUSES, RULES, Tables

MAX_PROMOTED: Final = 1_000
"""How many due jobs one query returns at most."""
FORGET_EVERY: Final = 1.0
"""Seconds that a worker with nothing else to do leaves between two looks for jobs to forget."""


class Queues:
    """The queues and ready lists of one store, inside of one transaction of one instance.

    Attributes:
      now: the store's time at this transaction.
      caller: the incarnation that makes this call.
      accepted: the ids of the jobs that this transaction accepted.
      news: (id, how it ended or died) of jobs, for the tasks that wait for them. None instead of an
        end: such a task may find something new of the job, the request or the messages.
      work_ready: whether a worker may find a job to claim that it could not claim before.
      work_elsewhere: the same, for the workers of other instances.
    """

    def __init__(self, tables: Tables, opening: Opening) -> None:
        self.tables: Final = tables
        self.opening: Final = opening
        self.now: float = 0.0
        self.caller: str = ""
        self.accepted: list[int] = []
        self.news: list[tuple[int, Ended | None]] = []
        self.work_ready: bool = False
        self.work_elsewhere: bool = False
        self.given_up: list[InstanceInfo] = []
        """Instances whose leases have expired, as they were."""

    @property
    def rules(self) -> StoreRules:
        """The rules of the store; this instance's own rules until a worker has set some."""
        return self.tables.of(RULES).get("") or self.opening.rules

    def forget_effects(self) -> None:
        """Reset the effects of a transaction: they were announced, or undone."""
        self.accepted, self.news, self.given_up = [], [], []
        self.work_ready = self.work_elsewhere = False

    # ---- into a queue

    def append(self, job: JobRecord) -> None:
        """Put a job at the tail of its session's queue, in the record alone."""
        self.tables.before_change(job)
        if job.session is not None:
            behind = self.tables.head(job.session) is not None
            job.place = self.tables.next_number()
            if behind:
                return  # only heads are on ready lists
        self._set_ready(job)

    def _set_ready(self, job: JobRecord, *, first: bool = False) -> None:
        """Give a head its place on the ready list, in the record alone."""
        self.tables.before_change(job)
        # places are unique, also among shelved jobs: these keep their places
        number = self.tables.next_number()
        job.ready = -number if first else number  # negative: before all that joined at the tail
        job.shelf = ON_LIST
        if job.session is not None:
            until = self.tables.of(PAUSES).get(job.session)
            if until is not None and until > self.now:
                job.shelf = SESSION_PAUSED
        if self.tables.fair and not first and job.shelf == ON_LIST:
            fair.join(self.tables, job)
        self.work_ready = True

    def list_ready(self, job: JobRecord, *, first: bool = False) -> None:
        """Put a waiting head on the ready list."""
        self._set_ready(job, first=first)
        self.tables.update(job, ready=job.ready, shelf=job.shelf)

    def list_next_head(self, session: str | None) -> None:
        """Put the head of a session's queue on the ready list, if it is new as head."""
        if session is not None:
            head = self.tables.head(session)
            if head is not None and head.state is WAITING and head.ready is None:
                self._set_ready(head)
                changes: dict[str, object] = {"ready": head.ready, "shelf": head.shelf}
                if head.due is None:  # its wait for the session is over
                    changes |= {"due": self.now, "why": "session"}
                self.tables.update(head, **changes)

    # ---- out of RUNNING, and out of a queue

    def advance(self, job: JobRecord, state: DurableState, **changes: object) -> None:
        """Change a job's state. No other function does that."""
        check_transition(job.state, state)
        if job.party is not None and job.state is WAITING:
            fair.leave(self.tables, job, claimed=state is RUNNING)
        if job.sent and job.state is RUNNING:
            self._drop_untaken(job)
        self.tables.update(job, state=state, **changes)

    def _drop_untaken(self, job: JobRecord) -> None:
        """Delete the messages to a job that its run, which ends, has not taken; see `talk`."""
        self.tables.drop_items(job.message_list, taken=False)
        self.news.append((job.id, None))

    def leave(
        self,
        job: JobRecord,
        state: DurableState,
        how: str,
        failure: str | None = None,
        **changes: object,
    ) -> None:
        """Take a job out of RUNNING, and note in its history how the run ended, and its failure."""
        history = ended(job.history, how, self.now, failure)
        self.advance(job, state, history=history, **changes)

    def _count_end(self, job: JobRecord, state: DurableState) -> None:
        """Count an end of a job under its lane, or under the template of that."""
        label = label_of(self.tables.of(LIMITS), job.lane)
        self.tables.count_end(label or job.lane, state)

    def end(self, job: JobRecord, state: DurableState, outcome: str, *, attempt: int = 0) -> None:
        """End a job, and count ``attempt`` (0 or 1); the store keeps it for ``result_ttl``."""
        changes: dict[str, object] = {}
        failure = None
        if state is FAILED:  # it can be requeued until the store forgets it
            changes["error"] = error_type(outcome)
            failure = in_one_line(outcome)
        else:
            changes["payload"] = ""  # no run reads it again, and `digest` stays
            if job.checkpoint is not None:
                changes["checkpoint"] = None
        if job.state is RUNNING:
            changes["history"] = ended(job.history, state._value_, self.now, failure)
        else:
            changes["ready"] = changes["why"] = None
            if job.expires is not None:
                changes["expires"] = None
        if job.coalesce is not None:
            changes["coalesce"] = None
        if job.place is not None:
            changes["place"] = None
        self.advance(
            job,
            state,
            attempts=job.attempts + attempt,
            due=self.now + self.rules.result_ttl,
            outcome=outcome,
            **changes,
        )
        self._count_end(job, state)
        self.news.append((job.id, Ended(state, outcome)))
        self.list_next_head(job.session)

    def mark_dead(self, job: JobRecord, error: str, *, attempt: int = 0, how: str = "dead") -> None:
        """Make a job dead. With the rule ``hold`` it keeps its place, which closes its session."""
        held = self.rules.hold and job.session is not None
        self.leave(
            job,
            DEAD,
            how,
            in_one_line(error),
            attempts=job.attempts + attempt,
            place=job.place if held else None,
            outcome=error,
            error=error_type(error),
            coalesce=None,
        )
        self._count_end(job, DEAD)
        self.news.append((job.id, Ended(DEAD, error)))
        self.list_next_head(job.session)

    def give_back(self, job: JobRecord, how: str = "released") -> None:
        """Put a running job back to WAITING, at the front of the ready list."""
        if job.cancel is not None:
            self.end(job, CANCELLED, job.cancel)  # it never waits again
        else:
            self.leave(job, WAITING, how, lent=HOLDS_SLOT)
            self.list_ready(job, first=True)

    def crash(self, runs: Collection[JobRecord]) -> None:
        """Give back the jobs that a process ran when it died, or did not answer for too long."""
        holding = sum(job.lent != LENT_SLOT for job in runs)
        # the last claimed first, since each job goes to the front
        for job in sorted(runs, key=lambda job: -job.fence):
            # a run that has lent its slot is waiting for other jobs: it is not counted beside them
            self._crash(job, len(runs) if job.lent == LENT_SLOT else holding)

    def _crash(self, job: JobRecord, runs: int) -> None:
        """Give back a job whose process was lost while it had ``runs`` runs, with this one.

        A crash of several jobs does not show which of them caused it. So only crashes in which
        the job ran alone make it dead.
        """
        self.tables.update(
            job,
            crashes=job.crashes + 1,
            crashes_alone=job.crashes_alone + (runs == 1),
            # the least so far: a crash among more runs does not widen the search
            crashed_with=min(job.crashed_with or runs, runs),
        )
        if job.cancel is None and job.crashes_alone >= self.rules.max_crashes:
            times = "once" if job.crashes_alone == 1 else f"{job.crashes_alone} times"
            message = (
                "the process ended, or did not answer for longer than its lease, while it ran this"
                f" job alone, {times}; is the handler blocking?"
            )
            error = json.dumps({"type": "crash", "message": message, "traceback": ""})
            self.mark_dead(job, error, how="crashed")
        else:
            self.give_back(job, "crashed")

    def postpone(self, job: JobRecord, outcome: Postponed) -> None:
        """Park a running job until its next attempt."""
        if job.cancel is not None:
            self.end(job, CANCELLED, job.cancel)
            return
        leaves = outcome.requeue and job.session is not None
        self.leave(
            job,
            PARKED,
            "retried",
            outcome.error,
            why="retry",
            due=self.now + outcome.delay,
            attempts=job.attempts + outcome.counts,
            crashed_with=0,
            place=None if leaves else job.place,
            lent=HOLDS_SLOT,
        )
        if leaves:
            self.list_next_head(job.session)

    def max_runs_with(self, job: JobRecord) -> int | float:
        """Return how many jobs an instance may run while it runs ``job``, this one included.

        It is infinite, but for a suspect: a job that its next crash could make dead. For a suspect
        it is half the number of jobs that ran in the last crash, so each crash halves the suspects.
        """
        if not job.crashed_with or job.crashes < max(1, self.rules.max_crashes - 1):
            return math.inf
        return max(1, job.crashed_with // 2)

    def revive(self, job: JobRecord) -> None:
        """Put a dead or failed job back to WAITING; its attempts and crashes do not change."""
        held = job.place is not None
        if not held:
            if job.session is not None:
                self.promote_session(job.session)
            self.append(job)
        self._wait_again(job, outcome=None, error=None)
        if held:
            self.list_next_head(job.session)

    # ---- time

    def promote(self) -> bool:
        """Queue the parked jobs that are due; end the jobs that have expired, and pauses.

        Return whether these jobs were all.
        """
        if due := self.tables.due(self.now, MAX_PROMOTED):
            self._promote(due)
        for session, until in [*self.tables.of(PAUSES).items()]:
            if until <= self.now:
                self.resume_session(session)
        return len(due) < MAX_PROMOTED

    def promote_session(self, session: str) -> None:
        """Queue the due jobs of a session, before another job joins the queue.

        Without it, the other job would overtake a job that fell due while no worker took a step.
        """
        while due := self.tables.due(self.now, MAX_PROMOTED, session):
            self._promote(due)

    def promote_one(self, job: JobRecord) -> None:
        """Queue a parked job, behind the due jobs of its session."""
        if job.session is not None:
            self.promote_session(job.session)
        if job.state is PARKED:  # else it was due
            self._promote([job])

    def _promote(self, due: Collection[JobRecord]) -> None:
        for job in due:
            if self.is_expired(job):
                self.end(job, EXPIRED, "{}")
        for job in due:
            if job.state is not PARKED:
                continue
            if job.place is None:
                self.append(job)
            else:
                self._set_ready(job)
            assert job.due is not None
            self._wait_again(job, due=min(job.due, self.now))  # until when it was parked

    def _wait_again(self, job: JobRecord, **changes: object) -> None:
        """Write a job that waits now, with the places that its record has got."""
        places = {"place": job.place, "ready": job.ready, "shelf": job.shelf}
        self.advance(job, WAITING, **places, **changes)

    def resume_session(self, session: str) -> None:
        """End the pause of a session; its head has kept its place on the ready list."""
        self.tables.put(PAUSES, session, None)
        head = self.tables.head(session)
        if head is not None and head.shelf == SESSION_PAUSED and head.ready is not None:
            self.tables.update(head, shelf=ON_LIST)
            if head.ready >= 0 and fair.weights_of(self.tables, head.lane) is not None:
                self.list_ready(head)  # its owner may have other jobs, and has gone on
            self.work_ready = True

    def next_due(self, *, also: float | None = None) -> float | None:
        """Return the seconds until a job or a limit falls due, or until ``also``; None: never.

        An ended job falls due when it is to be forgotten.
        """
        due = self.tables.next_due()
        ends = [
            limit.paused_until
            for limit in self.tables.of(LIMITS).values()
            if limit.paused_until is not None and self.now < limit.paused_until < math.inf
        ]
        if due is not None:
            ends.append(due)
        if also is not None:
            ends.append(also)
        over = self.tables.next_over()
        if over is not None:
            # jobs that have ended one after the other are forgotten together; a rest, at once
            ends.append(over if over <= self.now else max(over, self.now + FORGET_EVERY))
        return max(0.0, min(ends) - self.now) if ends else None

    def is_over(self, job: JobRecord) -> bool:
        """Whether ``result_ttl`` of an ended job is over; the next step deletes it."""
        return job.state in ENDED and job.due is not None and job.due <= self.now

    def is_expired(self, job: JobRecord) -> bool:
        """Whether the time for a job to begin is over; the next step ends it."""
        return job.expires is not None and job.expires <= self.now

    def known(self, id: int) -> JobRecord | None:
        """Return a job, unless its ``result_ttl`` is over."""
        job = self.tables.get(id)
        return None if job is None or self.is_over(job) else job

    def running_of(self, id: int, fence: int) -> JobRecord | None:
        """Return a running job, if the fence is still its run's."""
        job = self.tables.get(id)
        return job if job is not None and job.state is RUNNING and job.fence == fence else None

    def is_alive(self, instance: str) -> bool:
        """Whether an incarnation has its lease. A lost lease never comes back."""
        info = self.tables.of(INSTANCES).get(instance)
        return info is not None and info.lease_until > self.now

    def run_of(self, id: int, fence: int) -> JobRecord | None:
        """Return the job of a run, if the caller has a lease, and the fence is still the run's."""
        return self.running_of(id, fence) if self.is_alive(self.caller) else None

    def running_in(self, session: str) -> JobRecord | None:
        """Return the job that runs in a session, which is the head of its queue."""
        head = self.tables.head(session)
        return head if head is not None and head.state is RUNNING else None
