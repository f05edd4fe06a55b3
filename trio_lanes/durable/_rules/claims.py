"""Claims: which ready jobs an instance with free capacity may run.

Theory of operation:

* Lanes take turns, as far as their budgets allow.
* In a lane the highest priority is served first, but a lower priority with ready jobs is passed
  over at most nine times in a row.
* In a priority the order is that of the ready list. An instance skips jobs whose handler it lacks.
  A job whose handler no live instance has is shelved, so that claims do not look at it again.
* A suspect is a job that a further crash could make dead (`Queues.together`). Suspects are claimed
  before all other jobs. An instance that runs a suspect runs at most half as many jobs as ran in
  the suspect's last crash, and at last the suspect alone. So a job that kills its process is found
  after a few crashes, and only crashes in which it ran alone make it dead. The other jobs run
  again.
* An instance that runs more jobs than a suspect allows claims nothing until enough of them end.
* A suspect restricts claims for `ISOLATED_FOR` at most, doubled with each of its crashes. It has an
  end, because the suspect may wait for a job that is not claimed meanwhile. It doubles, so that a
  job that kills its process late is isolated for long enough at last.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, final

from .._contract.records import Claim, LaneLimit
from .._contract.state import RUNNING
from .budget import Budget
from .job_record import HOLDS_SLOT, LENT_SLOT, UNHANDLED, JobRecord
from .queues import Queues

PRIORITIES: Final = (1, 0, -1)
PASSED_OVER: Final = {0: 8, -1: 9}
"""How often a priority is passed over at most; different, so that no claim owes both a turn."""

ISOLATED_FOR: Final = 15.0
"""Seconds for which a suspect restricts claims, times two for each of its crashes."""

SHELVED_AT_ONCE: Final = 1_000
"""How many unhandled jobs of a lane one claim shelves at most."""


def is_paused(limit: LaneLimit, now: float) -> bool:
    """Whether the lane is paused now."""
    return limit.paused_until is not None and limit.paused_until > now


class Claims:
    """The claims of one instance, and whose turn it is from one claim to the next."""

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        self._passed: Final[dict[tuple[str, int], int]] = {}  # {(lane, priority): times in a row}
        self._isolation: Final = _Isolation(queues)
        self._served = ""  # the lane of the last claim
        self.due: float | None = None
        """When a job may start that a rate or a suspect kept out of the last `take`; or None."""
        self.unfinished = False
        """Whether the last `take` stopped early, since it had shelved `SHELVED_AT_ONCE` jobs."""

    def take(self, instance: str, room: int) -> list[Claim]:
        """Claim up to ``room`` jobs for ``instance``."""
        queues = self._queues
        self.due, self.unfinished = None, False
        if room <= 0:
            return []
        budget = Budget(queues.tables, queues.now)
        turns = deque(
            _LaneTurn(queues, name, room, budget, self._passed)
            for name, limit in budget.lanes.items()
            if not is_paused(limit, queues.now) and budget.free(name)
        )
        all_turns = list(turns)
        names = [turn.lane for turn in all_turns]
        if self._served in names:
            turns.rotate(-1 - names.index(self._served))
        isolation = self._isolation
        isolation.begin(instance)
        turns = deque(sorted(turns, key=lambda turn: turn.suspect is None))
        claims: list[Claim] = []
        while turns and len(claims) < room and isolation.has_room:
            turn = turns.popleft()
            job = turn.next(isolation)
            if job is not None:
                self._served = job.lane
                claims.append(self._claim(job, instance))
                isolation.add(job)
                turns.append(turn)
            elif turn.needs_isolation:
                break
        self.due = min(
            (due for due in (budget.due, isolation.due) if due is not None), default=None
        )
        self.unfinished = any(turn.unfinished for turn in all_turns)
        return claims

    def _claim(self, job: JobRecord, instance: str) -> Claim:
        queues = self._queues
        queues.advance(
            job,
            RUNNING,
            ready=None,
            instance=instance,
            fence=queues.tables.next_number(),
            lent=HOLDS_SLOT,
        )
        return Claim(
            id=job.id,
            fence=job.fence,
            name=job.name,
            payload=job.payload,
            session=job.session,
            lane=job.lane,
            attempt=job.attempts + 1,
            crashes=job.crashes,
            timeout=job.timeout,
            retry=job.retry,
            checkpoint=job.checkpoint,
        )


@final
class _Isolation:
    """The restriction of one instance to few runs while a suspect is among them.

    A run that has lent its slot is not counted: it is waiting for other jobs.

    Attributes:
      due: when a restriction ends that has refused a job; or None.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        self._since: Final[
            dict[int, float]
        ] = {}  # {suspect's id: when it began to restrict claims}
        self._running: int = 0
        self._most: int | float = math.inf
        self.due: float | None = None

    def begin(self, instance: str) -> None:
        """Count the runs of ``instance``."""
        runs = [job for job in self._queues.tables.running(instance) if job.lent != LENT_SLOT]
        self._running, self._most, self.due = len(runs), math.inf, None
        for job in runs:
            if job.company:
                self._restrict(job)

    @property
    def has_room(self) -> bool:
        """Whether the running suspects allow one more run."""
        return self._running < self._most

    def allows(self, suspect: JobRecord) -> bool:
        """Whether few enough jobs run for ``suspect`` to start, or its restriction is over."""
        return self._running < self._queues.together(suspect) or not self._lasts(suspect)

    def add(self, job: JobRecord) -> None:
        """Count a job that has just been claimed."""
        self._running += 1
        if job.company:
            self._since.pop(job.id, None)
            self._restrict(job)

    def _restrict(self, job: JobRecord) -> None:
        most = self._queues.together(job)
        if most < self._most and self._lasts(job):
            self._most = most

    def _lasts(self, suspect: JobRecord) -> bool:
        now = self._queues.now
        until = self._since.setdefault(suspect.id, now) + ISOLATED_FOR * 2.0 ** min(
            suspect.crashes, 64
        )
        if until > now:
            self.due = until if self.due is None else min(self.due, until)
        return until > now


class _LaneTurn:
    """The turn of one lane in a claim, with the jobs that were read from its ready lists."""

    def __init__(
        self,
        queues: Queues,
        lane: str,
        room: int,
        budget: Budget,
        passed: dict[tuple[str, int], int],
    ) -> None:
        self._queues = queues
        self.lane = lane
        self._at_once = int(min(room, budget.free(lane)))
        self._budget = budget
        self._passed = passed
        self._shelved = 0
        self.needs_isolation = False
        """Whether the next job is a suspect that could start if this instance ran fewer jobs."""
        self._heads = {priority: self._read(priority, None) for priority in PRIORITIES}

    def _read(self, priority: int, after: int | None) -> deque[JobRecord]:
        """Read the next jobs of a ready list that this instance has handlers for."""
        queues = self._queues
        handled = queues.opening.names
        while not self.unfinished:
            heads = queues.tables.ready(self.lane, priority, after, self._at_once)
            mine: deque[JobRecord] = deque()
            for job in heads:
                if job.name in handled:
                    mine.append(job)
                elif not self._is_handled(job.name):
                    queues.tables.update(job, shelf=UNHANDLED)
                    self._shelved += 1
            if mine or not heads:
                return mine
            after = heads[-1].ready
        return deque()

    @property
    def unfinished(self) -> bool:
        """Whether this turn has shelved so many jobs that the rest is left to the next step."""
        return self._shelved >= SHELVED_AT_ONCE

    def _is_handled(self, name: str) -> bool:
        return any(name in instance.names for instance in self._queues.tables.instances())

    @property
    def suspect(self) -> JobRecord | None:
        """A suspect at the front of one of the lane's ready lists; or None."""
        for heads in self._heads.values():
            if heads and heads[0].company and self._queues.together(heads[0]) < math.inf:
                return heads[0]
        return None

    def next(self, isolation: _Isolation) -> JobRecord | None:
        """Return the next job of this lane; None: there is none, or a limit refuses it."""
        present = [priority for priority, heads in self._heads.items() if heads]
        if not present or not self._budget.free(self.lane):
            return None
        if not self._budget.rates_allow(self.lane):
            return None
        chosen = present[0]
        for priority in present[:0:-1]:
            if self._passed.get((self.lane, priority), 0) >= PASSED_OVER[priority]:
                chosen = priority
                break
        suspect = self.suspect
        if suspect is not None:
            if not isolation.allows(suspect):
                self.needs_isolation = True
                return None
            chosen = suspect.priority
        for priority in present:
            if priority < chosen:
                passed = self._passed.get((self.lane, priority), 0)
                self._passed[self.lane, priority] = passed + 1
        self._passed[self.lane, chosen] = 0
        heads = self._heads[chosen]
        job = heads.popleft()
        self._budget.take(self.lane)
        if not heads and self._budget.free(self.lane):
            self._heads[chosen] = self._read(chosen, job.ready)
        return job
