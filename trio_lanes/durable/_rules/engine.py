"""The engine of stores of tables: accept, step, join, beat.

Theory of operation

The rules are synchronous functions over tables (`Tables`). Each call of an engine is one
transaction of its store, and the store makes it atomic. All that must survive a crash is in the
tables; an engine keeps in memory only whose turn it is among lanes and priorities.

A job is accepted (`Engine.enqueue`): it joins the tail of its session's queue, or is parked until
it is due. The head of a queue is on the ready list of its lane. `Engine.step` finishes runs, queues
parked jobs that are due, and claims ready jobs within the budgets (`claims`, `budget`). A claim
gives the job a fence; the run finishes under that fence. `Engine.join` and `Engine.beat` find
instances whose lease has expired and give back their jobs.

Invariants, true between any two transactions:

1. A job in a queue keeps its place until it has ended: while it waits, while it runs, and between
   attempts. The exceptions are a job with ``RetryPolicy(order="requeue")`` between attempts, and a
   dead job unless the rule ``hold`` keeps its session closed.
2. The head of a queue is in exactly one of these conditions: ready, running, parked between
   attempts, or dead and held. Jobs behind a head are WAITING and on no ready list.
3. A job is on a ready list if and only if it is WAITING, and is a head or has no session. A shelved
   job keeps its place on the list.
4. So at most one job of a session is RUNNING, and the session's next job becomes ready in the same
   transaction that ends the former.
5. A RUNNING job has the fence of its last claim, which is greater than every earlier fence. Only a
   call with that fence, from an instance that has its lease, finishes the run, keeps its
   checkpoint or moves its slot. Besides, only the recovery of a lost instance ends the run.
6. A RUNNING job belongs to an instance that is in the table of instances. Removing an instance
   gives back all its jobs in the same transaction.
7. The used slots of a lane are a set: its RUNNING jobs that have not lent their slot. There is no
   counter that a crash could leave wrong.
8. A RUNNING job whose cancellation is recorded (``cancel`` is set) never goes back to WAITING or
   PARKED: its run succeeds or fails by itself, or the job ends as CANCELLED.
9. Every refusal is raised before the first write. The store in memory cannot undo, and relies on
   that; a store with transactions can go on after a refusal without a rollback.

`inspection.check` compares the tables with these.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final, final

import attrs

from ... import LaneFullError, UnknownLaneError
from .._contract.errors import KeyConflictError
from .._contract.records import (
    Cancelled,
    Died,
    Failed,
    Finish,
    InstanceInfo,
    Opening,
    Postponed,
    Released,
    Step,
    Submission,
    Succeeded,
)
from .._contract.state import CANCELLED, DEAD, ENDED, FAILED, PARKED, RUNNING, SUCCEEDED, WAITING
from .budget import Budget
from .claims import Claims
from .job_record import HOLDS_SLOT, LENT_SLOT, ON_LIST, WANTS_SLOT, JobRecord
from .orders import revive
from .queues import Queues
from .tables import Tables

FORGET_AT_ONCE: Final = 500
"""How many ended jobs a step deletes at most."""
MOVED_AT_ONCE: Final = 1_000
"""How many shelved jobs a step makes ready at most."""


def digest(payload: str) -> str:
    """Return the hash of a payload: kept of a job with a key when its payload is deleted.

    The order of the fields of an object makes no difference.
    """
    try:
        payload = json.dumps(json.loads(payload), sort_keys=True)
    except (RecursionError, ValueError):  # nor can the worker read it
        pass
    return _digest(payload)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@final
class Engine(Queues):
    """The rules, as one instance applies them to the tables of a store."""

    def __init__(self, tables: Tables, opening: Opening) -> None:
        super().__init__(tables, opening)
        self._claims: Final = Claims(self)
        self.instance = ""
        self._unshelving = False  # whether shelved jobs may exist that this instance can run
        for name, limit in opening.lanes.items():
            there = tables.lanes().get(name)
            if there is None:
                tables.put_lane(name, attrs.evolve(limit, proposed=not opening.worker))
            elif there.proposed and opening.worker:
                paused_until = there.paused_until or limit.paused_until
                tables.put_lane(name, attrs.evolve(limit, paused_until=paused_until))
        if opening.worker:
            self._open_as_worker()

    def _open_as_worker(self) -> None:
        tables, opening = self.tables, self.opening
        grouped = {member for group in tables.groups().values() for member in group.members}
        for name, group in opening.groups.items():
            if name not in tables.groups() and grouped.isdisjoint(group.members):
                tables.put_group(name, group)
        if tables.rules() is None:
            tables.put_rules(opening.rules)

    # ---- instances

    def join(self, *, lease_until: float, alone: bool, lost: Sequence[tuple[int, int]]) -> None:
        """Become a new incarnation, then give back the jobs of instances that are gone.

        Args:
          alone: whether no other instance can be alive.
          lost: (id, fence) of this process's runs that ended with its lease; they count no crash.
        """
        for id, fence in lost:
            self._forgive(id, fence)
        self.instance = uuid.uuid4().hex
        tables, names = self.tables, self.opening.names
        tables.put_instance(
            InstanceInfo(
                self.instance,
                socket.gethostname(),
                os.getpid(),
                self.now,
                lease_until,
                tuple(sorted(names)),
                0,
            )
        )
        self.reap(all_others=alone)
        self._unshelving = True
        self.look = True

    def is_alive(self) -> bool:
        """Whether this incarnation has its lease. A lost lease never comes back."""
        until = self.tables.lease_of(self.instance)
        return until is not None and until > self.now

    def beat(self, lease_until: float) -> bool:
        """Prolong the lease; return False if it is over."""
        if not self.is_alive():
            return False
        for info in self.tables.instances():
            if info.id == self.instance:
                self.tables.put_instance(attrs.evolve(info, lease_until=lease_until))
        self.reap(all_others=False)
        return True

    def reap(self, *, all_others: bool) -> None:
        """Remove other instances whose lease has expired, or all; give back their jobs."""
        for info in self.tables.instances():
            if info.id != self.instance and (all_others or info.lease_until <= self.now):
                self._remove_instance(info.id)

    def _forgive(self, id: int, fence: int) -> None:
        """Take back the crash of a run that ended because its lease was lost."""
        job = self.tables.get(id)
        if job is None or job.state in ENDED:
            return
        if job.fence == fence and job.state is RUNNING:
            self.give_back(job)  # no other instance has given it back yet
            return
        self.tables.update(
            job,
            crashes=max(0, job.crashes - 1),
            alone=job.alone - (job.company == 1),
            company=0,
        )
        if job.fence == fence and job.state is DEAD:  # this crash made it dead
            revive(self, job)

    def leave(self) -> None:
        """End this incarnation. It can be repeated, if its transaction was undone."""
        self._remove_instance(self.instance)

    def _remove_instance(self, id: str) -> None:
        self.crash(self.tables.running(id))
        self.tables.drop_instance(id)
        self.look = True

    # ---- accepting

    def enqueue(self, batch: Sequence[Submission]) -> list[int]:
        """Accept all jobs, or none. Return their ids."""
        lanes = self.tables.lanes()
        fresh: Counter[str] = Counter()  # of this batch, by lane
        keyed: dict[str, Submission] = {}  # of this batch
        for item in batch:
            if item.lane not in lanes:
                raise UnknownLaneError(item.lane, lanes)
            if item.key is not None:
                if item.key in keyed:
                    _compare(item, _record(keyed[item.key], self.now))
                    continue
                known = self.tables.keyed(item.key)
                if known is not None and not self.is_over(known):
                    _compare(item, known)
                    continue
                keyed[item.key] = item
            most = lanes[item.lane].max_waiting
            if most != math.inf:
                fresh[item.lane] += 1
                if self.tables.waiting_for(item.lane) + fresh[item.lane] > most:
                    raise LaneFullError(item.lane, most)
        return [self._accept(item) for item in batch]

    def _accept(self, item: Submission) -> int:
        if item.key is not None:
            known = self.tables.keyed(item.key)
            if known is not None and not self.is_over(known):
                return known.id
            if known is not None:
                self.tables.delete(known)
        job = _record(item, self.now)
        if job.session is not None and job.state is WAITING:
            self.promote_session(job.session)
        job.id = self.tables.next_number()
        if job.state is WAITING:
            self.append(job)
        else:
            self.look = True  # the worker may be sleeping until a later time
        self.tables.insert(job)
        self.accepted.append(job.id)
        return job.id

    # ---- working

    def step(self, finished: Sequence[Finish], room: int) -> Step:
        """Finish runs, and claim up to ``room`` jobs."""
        alive = self.is_alive()
        stale = [finish.fence for finish in finished if not alive or not self._finish(finish)]
        self.promote()
        self._unshelve()
        self.tables.forget_due(self.now, FORGET_AT_ONCE)
        claims = self._claims.take(self.instance, room if alive else 0)
        cancels = tuple((job.id, job.fence) for job in self.tables.cancelled_running(self.instance))
        # this instance has claimed already, but it may have freed slots that another can use
        self.look_elsewhere = self.look or bool(finished)
        self.look = self._unshelving or self._claims.unfinished
        return Step(tuple(claims), tuple(stale), cancels, self.next_due(also=self._claims.due))

    def _unshelve(self) -> None:
        """Make jobs ready that were shelved, and that this instance has handlers for."""
        if self._unshelving:
            shelved = self.tables.shelved(self.opening.names, MOVED_AT_ONCE)
            for job in shelved:
                self.tables.update(job, shelf=ON_LIST)
            self._unshelving = bool(shelved)  # until none is found, since a step may be undone

    def _finish(self, finish: Finish) -> bool:
        job = self.running_of(finish.id, finish.fence)
        if job is None:
            return False
        outcome = finish.outcome
        if isinstance(outcome, Succeeded):
            self.end(job, SUCCEEDED, outcome.result, attempt=1)
        elif isinstance(outcome, Failed):
            self.end(job, FAILED, outcome.error, attempt=1)
        elif isinstance(outcome, Died):
            self.mark_dead(job, outcome.error, attempt=1)
        elif isinstance(outcome, Postponed):
            self.postpone(job, outcome.delay, counts=outcome.counts, requeue=outcome.requeue)
        elif isinstance(outcome, Released):
            self.give_back(job)
        else:
            assert isinstance(outcome, Cancelled)
            self.end(job, CANCELLED, job.cancel or "{}")
        return True

    def _my_run(self, id: int, fence: int) -> JobRecord | None:
        return self.running_of(id, fence) if self.is_alive() else None

    def checkpoint(self, id: int, fence: int, data: str) -> bool:
        """Keep data for the next attempt; False if the fence is no longer the run's."""
        job = self._my_run(id, fence)
        if job is not None:
            self.tables.update(job, checkpoint=data)
        return job is not None

    def lend_slot(self, id: int, fence: int) -> bool:
        """Free the slot of a run; False if the fence is no longer the run's."""
        job = self._my_run(id, fence)
        if job is not None:
            self.tables.update(job, lent=LENT_SLOT)
            self.look = True
        return job is not None

    def regain_slot(self, id: int, fence: int) -> bool | None:
        """Take the slot back; False: none is free; None: the fence is no longer the run's."""
        job = self._my_run(id, fence)
        if job is None:
            return None
        if job.lent == HOLDS_SLOT:
            return True
        if job.lent == LENT_SLOT:
            self.tables.update(job, lent=WANTS_SLOT)
        if not Budget(self.tables, self.now).may_return(job):
            return False
        self.tables.update(job, lent=HOLDS_SLOT)
        return True


def _record(item: Submission, now: float) -> JobRecord:
    assert isinstance(item.payload, str)
    assert item.retry is None or isinstance(item.retry, str)
    return JobRecord(
        name=item.name,
        lane=item.lane,
        session=item.session,
        priority=item.priority,
        payload=item.payload,
        key=item.key,
        digest=None if item.key is None else digest(item.payload),
        timeout=item.timeout,
        retry=item.retry,
        state=PARKED if item.delay > 0 else WAITING,
        due=now + item.delay if item.delay > 0 else None,
        why="delay" if item.delay > 0 else None,
        submitted_at=now,
    )


def _compare(item: Submission, known: JobRecord) -> None:
    assert isinstance(item.payload, str)
    assert item.key is not None
    for field, same in (
        ("name", item.name == known.name),
        ("session", item.session == known.session),
        ("lane", item.lane == known.lane),
        # the second hash: of a job from a version whose hash depended on the order of fields
        ("payload", known.digest in (digest(item.payload), _digest(item.payload))),
    ):
        if not same:
            raise KeyConflictError(item.key, known.id, field)
