"""Claims: whose turn it is. Which jobs an instance with room is admitted to run.

Lanes take turns, each as far as its budget goes. In a lane the highest priority is served first,
but one that has somebody waiting is passed over nine times at most. In a priority it is the ready
list's order, of which an instance leaves out whatever it has no handler for; what no live instance
has one for is shelved, so that it is looked at once and not with every claim.

Suspects are jobs that a further crash could make dead (`Queues.together`). They are claimed before
all others, and an instance that runs one runs at most half as many jobs as its last crash had, in
the end that job alone. So a job that kills its process is found after a few crashes, and dies of
crashes in which nothing else ran, while the jobs beside it only run again. An instance that runs
more than a suspect may have beside it claims nothing until enough of them have ended. All of this
lasts for `ISOLATED_FOR` at most, doubled with each crash of the suspect: a job may wait for another
that is not claimed meanwhile, and a job that kills its process late is found when it is isolated
for longer than it needs for that.
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
"""How often a priority is passed over at most; two of them are not due in the same claim."""

ISOLATED_FOR: Final = 15.0
"""Seconds for which a suspect keeps other jobs off, times two for each of its crashes."""

SHELVED_AT_ONCE: Final = 1_000
"""How many jobs of a lane that nobody can run one claim sets aside at most."""


def is_paused(limit: LaneLimit, now: float) -> bool:
    """Whether nothing is claimed from that lane now."""
    return limit.paused_until is not None and limit.paused_until > now


class Claims:
    """The turns of one instance, from one claim to the next."""

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        self._passed: Final[dict[tuple[str, int], int]] = {}  # {(lane, priority): times in a row}
        self._isolation: Final = _Isolation(queues)
        self._served = ""  # the lane of the last claim
        self.due: float | None = None
        """When a job may start that a rate or an isolation kept from the last `take`."""
        self.unfinished = False
        """Whether the last `take` shelved so many that it did not get to see all."""

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
    """How many jobs an instance may run while some of them are suspects.

    A run that has lent its slot counts for nothing here: it waits for others.

    Attributes:
      due: when an isolation ends that was asked about.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        self._since: Final[
            dict[int, float]
        ] = {}  # {suspect's id: when it began to keep others off}
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
        """Whether the suspects that run let one more job run."""
        return self._running < self._most

    def allows(self, suspect: JobRecord) -> bool:
        """Whether so few jobs run that ``suspect`` may be one of them, or it has waited enough."""
        return self._running < self._queues.together(suspect) or not self._lasts(suspect)

    def add(self, job: JobRecord) -> None:
        """Count ``job``, which has just been claimed."""
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
    """One lane, while it is being served, and the heads that it was shown."""

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
        """Whether a suspect could start if fewer jobs ran on this instance."""
        self._heads = {priority: self._read(priority, None) for priority in PRIORITIES}

    def _read(self, priority: int, after: int | None) -> deque[JobRecord]:
        """The next heads of a ready list that this instance can run."""
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
        """Whether it has shelved so many that the rest has to wait for the next step."""
        return self._shelved >= SHELVED_AT_ONCE

    def _is_handled(self, name: str) -> bool:
        return any(name in instance.names for instance in self._queues.tables.instances())

    @property
    def suspect(self) -> JobRecord | None:
        """A head that is a suspect."""
        for heads in self._heads.values():
            if heads and heads[0].company and self._queues.together(heads[0]) < math.inf:
                return heads[0]
        return None

    def next(self, isolation: _Isolation) -> JobRecord | None:
        """Whose turn it is; None: nobody's, or a limit does not let it start."""
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
