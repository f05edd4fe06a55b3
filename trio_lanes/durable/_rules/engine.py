"""The engine of the stores that are tables: accepting, stepping, and who is alive.

It is synchronous, and each of its calls is one transaction of the store that carries it, which is
where atomicity comes from. The store in memory cannot undo: it relies on every refusal being
raised before the first write. An engine keeps nothing that a crash would lose, save whose turn it
is among lanes and priorities.
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

from ..._errors import LaneFullError, UnknownLaneError
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
"""How many ended jobs a step forgets at most."""
MOVED_AT_ONCE: Final = 1_000
"""How many jobs a step takes from the shelf at most."""


def digest(payload: str) -> str:
    """What is kept of a keyed payload when the job has ended.

    The order of the fields of an object is no part of it.
    """
    try:
        payload = json.dumps(json.loads(payload), sort_keys=True)
    except (RecursionError, ValueError):  # the worker cannot read it either
        pass
    return _digest(payload)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@final
class Engine(Queues):
    """One instance at the tables of a store."""

    def __init__(self, tables: Tables, opening: Opening) -> None:
        super().__init__(tables, opening)
        self._claims: Final = Claims(self)
        self.instance = ""
        self._unshelving = False  # whether there may be some whose names this instance has
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

    # ---- who is alive

    def join(self, *, lease_until: float, alone: bool, lost: Sequence[tuple[int, int]]) -> None:
        """Become a new incarnation, then give back what others held that are no more.

        Args:
          alone: nobody else can be alive.
          lost: (id, fence) of runs whose lease was lost, though the process is well.
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
        """Whether this incarnation has its lease; it never has it again."""
        until = self.tables.lease_of(self.instance)
        return until is not None and until > self.now

    def beat(self, lease_until: float) -> bool:
        """Prolong the lease, unless it is over."""
        if not self.is_alive():
            return False
        for info in self.tables.instances():
            if info.id == self.instance:
                self.tables.put_instance(attrs.evolve(info, lease_until=lease_until))
        self.reap(all_others=False)
        return True

    def reap(self, *, all_others: bool) -> None:
        """Give back what other instances held that are no more."""
        for info in self.tables.instances():
            if info.id != self.instance and (all_others or info.lease_until <= self.now):
                self._remove_instance(info.id)

    def _forgive(self, id: int, fence: int) -> None:
        """Nothing crashed in that run: only the lease was over."""
        job = self.tables.get(id)
        if job is None or job.state in ENDED:
            return
        if job.fence == fence and job.state is RUNNING:
            self.give_back(job)  # before anybody else found out
            return
        self.tables.update(
            job,
            crashes=max(0, job.crashes - 1),
            alone=job.alone - (job.company == 1),
            company=0,
        )
        if job.fence == fence and job.state is DEAD:  # of that very crash
            revive(self, job)

    def leave(self) -> None:
        """End this incarnation. It may be done again, should it be undone."""
        self._remove_instance(self.instance)

    def _remove_instance(self, id: str) -> None:
        self.crash(self.tables.running(id))
        self.tables.drop_instance(id)
        self.look = True

    # ---- accepting

    def enqueue(self, batch: Sequence[Submission]) -> list[int]:
        """Accept all of them, or none."""
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
            self.look = True  # somebody may sleep until something that is due later
        self.tables.insert(job)
        self.accepted.append(job.id)
        return job.id

    # ---- working

    def step(self, finished: Sequence[Finish], room: int) -> Step:
        """Finish those, and claim others."""
        alive = self.is_alive()
        stale = [finish.fence for finish in finished if not alive or not self._finish(finish)]
        self.promote()
        self._unshelve()
        self.tables.forget_due(self.now, FORGET_AT_ONCE)
        claims = self._claims.take(self.instance, room if alive else 0)
        cancels = tuple((job.id, job.fence) for job in self.tables.cancelled_running(self.instance))
        # this one has looked; but it may have freed what another waits for
        self.look_elsewhere = self.look or bool(finished)
        self.look = self._unshelving or self._claims.unfinished
        return Step(tuple(claims), tuple(stale), cancels, self.next_due(also=self._claims.due))

    def _unshelve(self) -> None:
        """Have jobs that nobody could run be looked at again, now that somebody can."""
        if self._unshelving:
            shelved = self.tables.shelved(self.opening.names, MOVED_AT_ONCE)
            for job in shelved:
                self.tables.update(job, shelf=ON_LIST)
            self._unshelving = bool(shelved)  # till none is found: this step may be undone

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
        """Keep what the next attempt shall find."""
        job = self._my_run(id, fence)
        if job is not None:
            self.tables.update(job, checkpoint=data)
        return job is not None

    def lend_slot(self, id: int, fence: int) -> bool:
        """Have the run take part in no limit."""
        job = self._my_run(id, fence)
        if job is not None:
            self.tables.update(job, lent=LENT_SLOT)
            self.look = True
        return job is not None

    def regain_slot(self, id: int, fence: int) -> bool | None:
        """Take the slot back, or stand in line for it."""
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
        # the second: of a job that was accepted when the order of fields was a part of it
        ("payload", known.digest in (digest(item.payload), _digest(item.payload))),
    ):
        if not same:
            raise KeyConflictError(item.key, known.id, field)
