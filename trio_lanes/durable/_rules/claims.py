"""Claims: which ready jobs an instance with free capacity may run.

Theory of operation:

* Lanes take turns, in the order of their names, as far as their budgets allow. Of many lanes a
  claim looks at those only whose turn comes while it has room. If many of them cannot start a
  job, they are put aside until their jobs or limits change, or their time comes. What is put aside
  is common to all instances of the tables, so what an instance lacks puts nothing aside.
* In a lane the highest priority is served first, but a lower priority with ready jobs is passed
  over at most nine times in a row. In a lane with aging, the first jobs of the priorities compare
  ``priority + waited / aging`` instead, as in the core, each with its own wait.
* In a priority the order is that of the ready places. There is a list for each handler's name, and
  an instance merges the fronts of the lists whose handlers it has. So it never reads a job whose
  handler it lacks.
* In a fair lane the lists hold owners, and weights divide them into rings (`fair`).
* Whose turn it is among lanes and priorities is kept in the tables: it holds over all instances.
* A job whose session has its home elsewhere may be left to that for a while (`affinity`).
* A suspect is a job that a further crash could make dead (`Queues.max_runs_with`). Suspects are
  claimed before all other jobs. An instance that runs a suspect runs at most half as many jobs as
  ran in the suspect's last crash, and at last the suspect alone. So a job that kills its process is
  found after a few crashes, and only crashes in which it ran alone make it dead. The other jobs run
  again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from operator import is_, methodcaller
from typing import Final, final

from ..._config.shares import UNLISTED_CLASS, next_class, note_served
from .._contract.protocol import STEP_BYTES
from .._contract.records import Claim, LaneLimit
from .._contract.state import RUNNING
from .affinity import Homes
from .budget import Budget
from .counts import Counts
from .fair import key_of
from .history import begun, process_key
from .holds import note_hold
from .job_record import HOLDS_SLOT, JobRecord, place_on_list
from .queues import Queues
from .running import Running
from .tables import FAIR_TURNS, HOLDS, LIMITS, SHARES, Tables

PRIORITIES: Final = (1, 0, -1)
PASSED_OVER: Final = {0: 8, -1: 9}
"""How often a priority is passed over at most; different, so that no claim owes both a turn."""

AT_ONCE: Final = 50
"""Of how many lanes the ready lists are read together at most; no more are looked at in vain."""
ASIDE_FOR: Final = 60.0
"""Seconds after which the first lane that was put aside is looked at again, at the latest.

The last one is after twice as many: they do not come back all at once.
"""

_first: Final = methodcaller("first")

ISOLATED_FOR: Final = 15.0
"""Seconds for which a suspect restricts claims, times two for each of its crashes.

It has an end, because the suspect may wait for a job that is not claimed meanwhile. It doubles, so
that a job that kills its process late is isolated for long enough at last.
"""


def is_paused(limit: LaneLimit, now: float) -> bool:
    """Whether the lane is paused now."""
    return limit.paused_until is not None and limit.paused_until > now


def claim_of(job: JobRecord) -> Claim:
    """Return the claim of a running job, as the step that claimed it gives it."""
    return Claim(  # by position, since arguments by name take twice as long
        job.id,
        job.fence,
        job.name,
        job.payload,
        job.session,
        job.lane,
        job.attempts + 1,
        job.crashes,
        job.timeout,
        job.retry,
        job.checkpoint,
        job.headers,
    )


def bytes_of(job: JobRecord) -> int:
    """Return how many bytes the payload and the checkpoint data of a job have."""
    size = _size(job.payload)
    return size if job.checkpoint is None else size + _size(job.checkpoint)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@final
class FairTurns:
    """Whose turn it is: {lane and priority: how often it was passed over in a row}."""

    def __init__(self, tables: Tables) -> None:
        self._tables: Final = tables
        self._known: Final = tables.of(FAIR_TURNS)
        self._new: Final[dict[str, str | int]] = {}

    @property
    def served(self) -> str:
        """The lane of the last claim before those of this transaction."""
        return str(self._known.get("served", ""))

    def passed(self, lane: str, priority: int) -> int:
        """Return how often a priority of a lane was passed over since its last claim."""
        key = f"passed {priority} {lane}"
        return int(self._new.get(key, self._known.get(key, 0)))

    def put_passed(self, lane: str, priority: int, times: int) -> None:
        """Note how often a priority of a lane was passed over."""
        self._new[f"passed {priority} {lane}"] = times

    def put_served(self, lane: str) -> None:
        """Note the lane of a claim."""
        self._new["served"] = lane

    def write(self) -> None:
        """Write what has changed."""
        for key, value in self._new.items():
            if value != self._known.get(key):
                self._tables.put(FAIR_TURNS, key, value)


def forget_turns(tables: Tables) -> None:
    """Forget how often priorities of lanes of templates were passed over that have no jobs."""
    lanes = tables.of(LIMITS)
    for key in list(tables.of(FAIR_TURNS)):
        kind, *of = key.split(" ", 2)  # "passed", the priority, the lane
        if kind == "passed" and of[1] not in lanes and not tables.counts().bound.get(of[1]):
            tables.put(FAIR_TURNS, key, None)


class Claims:
    """The claims of one instance."""

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        self._isolation: Final = _Isolation(queues)
        self._here: Final = process_key(queues.opening.host, queues.opening.pid)
        self.due: float | None = None
        """When a job may start that a rate, a suspect or its home kept out of the last `take`."""
        self._limits: tuple[object, object] = None, None  # when lanes were put aside last
        self._fruitless = 0  # how many lanes the present `take` has looked at in vain
        self.unfinished: bool = False
        """Whether the last `take` stopped early, since its claims had `STEP_BYTES`."""

    def _turns(
        self, counts: Counts, turns: FairTurns, budget: Budget, room: int, homes: Homes | None
    ) -> Iterator[LaneTurn]:
        """Yield the turns of lanes that may start a job: those of lanes with suspects first."""
        queues, tables, names = self._queues, self._queues.tables, self._queues.opening.names

        def free(lane: str) -> int:
            limit, until = budget.limit(lane), math.inf
            if limit is not None and is_paused(limit, queues.now):
                until = limit.paused_until or until
                self._note_skipped(counts, turns, budget, lane, "pause", until)
            elif limit is not None:
                if counts.waiting[lane].isdisjoint(names):
                    return 0  # not put aside, since another instance may have the handlers
                n = int(min(room, budget.free(lane)))
                if n:
                    return n
                self._note_skipped(counts, turns, budget, lane, budget.why_not(lane))
                if not budget.is_held(lane):  # but by its group: other lanes free that, too
                    return 0
            self._put_aside(counts, lane, until)
            return 0

        unchanged = all(map(is_, budget.limits, self._limits))
        self._limits, self._fruitless = budget.limits, 0
        counts.restore(queues.now, everything=not unchanged)
        lanes = counts.lanes_after(turns.served)
        suspected = tables.suspected() if len(lanes) > 1 else ()  # a turn has its suspects first
        suspects: dict[str, LaneTurn] = {}
        for lane in filter(suspected.__contains__, lanes) if suspected else ():
            most = free(lane)
            if most:
                turn = LaneTurn(queues, counts, lane, names, turns, budget, most, homes)
                if turn.suspect is not None:
                    suspects[lane] = turn
        yield from suspects.values()
        others, at_once = (lane for lane in lanes if lane not in suspects), min(room, AT_ONCE)
        while some := list(islice(others, at_once)):
            tables.look_ahead(some, names)
            at_once = AT_ONCE  # those did not fill the room
            for lane in some:
                if most := free(lane):
                    # one more, so that no further read has to say whether jobs are left
                    yield LaneTurn(queues, counts, lane, names, turns, budget, most + 1, homes)

    def _put_aside(
        self, counts: Counts, lane: str, until: float, rated_until: float = math.inf
    ) -> None:
        self._fruitless += 1
        if self._fruitless > AT_ONCE:  # so few are quickly looked at again
            longest = ASIDE_FOR * (1 + self._fruitless % 64 / 64)
            counts.put_aside(lane, min(until, self._queues.now + longest), rated_until)

    def take(self, instance: str, room: int) -> list[Claim]:
        """Claim up to ``room`` jobs for ``instance``.

        The counts of jobs, the running jobs and the limits are read once; the jobs that it claims
        are added to what was read.
        """
        queues, names = self._queues, self._queues.opening.names
        self.due, self.unfinished = None, False
        if room <= 0:
            return []
        isolation, runs = self._isolation, queues.tables.runs()
        isolation.begin(instance, runs)
        counts = queues.tables.counts()
        if not counts.waiting:  # as mostly in a step that reports the end of a job
            self.due = isolation.due
            return []
        budget = Budget(queues.tables, queues.now, runs)
        turns = FairTurns(queues.tables)
        homes = Homes(queues, instance) if queues.opening.affinity else None
        unseen, seen = self._turns(counts, turns, budget, room, homes), deque[LaneTurn]()
        claims: list[Claim] = []
        looked_at: dict[str, LaneTurn] = {}
        due = math.inf  # without room no rate is waited for
        left = math.inf  # bytes, of payloads and checkpoints; one job may exceed `STEP_BYTES`
        while len(claims) < room and isolation.has_room and not self.unfinished:
            turn = next(unseen, None) or (seen.popleft() if seen else None)
            if turn is None:
                due = min(budget.due, counts.rated_until())
                break
            if turn.had_jobs:
                looked_at[turn.lane] = turn
            job = turn.next(isolation, left)
            if job is not None:
                claims.append(self._claim(job, instance))
                isolation.add(job)
                seen.append(turn)
                left = min(left, STEP_BYTES) - bytes_of(job)
            elif turn.needs_isolation:
                break  # no lane gets more until enough runs have ended for the suspect
            elif turn.passes_over:
                seen.append(turn)
            elif (
                turn.lane in budget.refused
                # else another instance may have another next job, for which the rates have enough
                and counts.waiting[turn.lane] <= names
                and budget.is_held(turn.lane)
            ):
                until = budget.refused[turn.lane]
                self._put_aside(counts, turn.lane, until, until)
            self.unfinished = turn.needs_bytes
        for lane, turn in looked_at.items():
            cause = "" if turn.is_empty else budget.why_not(lane)
            if cause or lane in queues.tables.of(HOLDS):
                note_hold(queues.tables, queues.now, lane, cause)
        if claims:
            turns.put_served(claims[-1].lane)
        dues = isolation.due, homes and homes.due, due if due < math.inf else None
        self.due = min([due for due in dues if due is not None], default=None)
        turns.write()
        return claims

    def _note_skipped(
        self,
        counts: Counts,
        turns: FairTurns,
        budget: Budget,
        lane: str,
        cause: str,
        until: float = math.inf,
    ) -> None:
        """Note why a lane got no turn, if it has ready jobs for this instance."""
        queues = self._queues

        def is_held() -> bool:
            names = queues.opening.names
            return LaneTurn(queues, counts, lane, names, turns, budget, 1).had_jobs

        note_hold(queues.tables, queues.now, lane, cause, until=until, if_so=is_held)

    def _claim(self, job: JobRecord, instance: str) -> Claim:
        queues = self._queues
        if job.expires is not None:
            queues.tables.update(job, expires=None)
        fence = queues.tables.next_number()
        queues.advance(
            job,
            RUNNING,
            ready=None,
            instance=instance,
            fence=fence,
            lent=HOLDS_SLOT,
            history=begun(job, fence, self._here, queues.now),
        )
        return claim_of(job)


@final
class _Isolation:
    """The restriction of one instance to few runs while a suspect is among them.

    A run that has lent its slot is not counted: it is waiting for other jobs.

    Attributes:
      due: when a restriction ends that has refused a job; or None.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues: Final = queues
        # {suspect's id: when it began to restrict claims}
        self._since: Final[dict[int, float]] = {}
        self._running: int = 0
        self._max_runs: int | float = math.inf
        self.due: float | None = None

    def begin(self, instance: str, runs: Running) -> None:
        """Count the runs of ``instance``."""
        self._running, suspects = runs.count_and_suspects(instance)
        self._max_runs, self.due = math.inf, None
        for job in suspects:
            self._restrict(job)

    @property
    def has_room(self) -> bool:
        """Whether the running suspects allow one more run."""
        return self._running < self._max_runs

    def allows(self, suspect: JobRecord) -> bool:
        """Whether few enough jobs run for ``suspect`` to start, or its restriction is over."""
        return self._running < self._queues.max_runs_with(suspect) or not self._lasts(suspect)

    def add(self, job: JobRecord) -> None:
        """Count a job that has just been claimed."""
        self._running += 1
        if job.crashed_with:
            # it is watched from its start; before, the others were kept back so that it could start
            self._since.pop(job.id, None)
            self._restrict(job)

    def _restrict(self, job: JobRecord) -> None:
        most = self._queues.max_runs_with(job)
        if most < self._max_runs and self._lasts(job):
            self._max_runs = most

    def _lasts(self, suspect: JobRecord) -> bool:
        now = self._queues.now
        until = self._since.setdefault(suspect.id, now) + ISOLATED_FOR * 2.0 ** min(
            suspect.crashes, 64
        )
        if until > now:
            self.due = until if self.due is None else min(self.due, until)
        return until > now


class _Front:
    """The next jobs of one priority of a lane: the merged fronts of the lists of some handlers."""

    def __init__(self, queues: Queues, lane: str, priority: int, names: list[str]) -> None:
        self._queues = queues
        self._lane = lane
        self._priority = priority
        self._lists: dict[str, deque[JobRecord]] = {name: deque() for name in names}
        self._after: dict[str, int | None] = dict.fromkeys(names)

    def read(self, limit: int) -> bool:
        """Read the next jobs of each list of which none is known; return whether there are any."""
        for name, jobs in list(self._lists.items()):
            if not jobs:
                jobs.extend(
                    self._queues.tables.ready(
                        self._lane, self._priority, name, self._after[name], limit
                    )
                )
                if not jobs:
                    del self._lists[name]
        return bool(self._lists)

    def first(self) -> JobRecord:
        """Return the first job of all lists."""
        if len(self._lists) == 1:
            (jobs,) = self._lists.values()
            return jobs[0]
        return min((jobs[0] for jobs in self._lists.values()), key=place_on_list)

    def pop(self, served: bool) -> bool:
        """Remove the first job; return whether its list must be read again."""
        job = self.first()
        self._after[job.name] = job.ready
        jobs = self._lists[job.name]
        jobs.popleft()
        return not jobs


class _FairFront:
    """The next job of one priority of a fair lane: the first of one of its rings.

    Nothing is read ahead, since each claim moves other jobs of its owner.
    """

    def __init__(
        self,
        queues: Queues,
        lane: str,
        priority: int,
        names: list[str],
        weights: Mapping[str, float],
    ) -> None:
        self._tables = queues.tables
        self._lane = lane
        self._priority = priority
        self._weights = weights
        # {(ring, handler's name): the place behind which its next job is}
        self._after: dict[tuple[str, str], int | None] = {
            (ring, name): None for ring in {UNLISTED_CLASS: None, **self._shares} for name in names
        }
        self._first: JobRecord | None = None
        self._pulls: dict[str, float] = {}  # of the rings among which the first was chosen

    @property
    def _shares(self) -> Mapping[str, tuple[int, float]]:
        return self._tables.of(SHARES).get(key_of(self._lane, self._priority), {})

    def read(self, limit: int) -> bool:
        """Read the first job of each ring, and choose the next; return whether there is one."""
        heads: dict[str, JobRecord] = {}
        for (ring, name), after in self._after.items():
            for job in self._tables.ready(self._lane, self._priority, name, after, 1, ring):
                heads[ring] = min(job, heads.get(ring, job), key=place_on_list)
        self._pulls, first = {}, heads.get(UNLISTED_CLASS)
        # A job that was given back stands for no owner: it goes first, and takes no turn.
        if len(heads) > 1 and not (first is not None and first.party is None):
            shares = self._shares
            for ring in heads:
                owners, _ = shares.get(ring, (1, 0.0))
                self._pulls[ring] = self._weights.get(ring, 1.0) * owners
            owed = {ring: services for ring, (_, services) in shares.items()}
            first = heads[next_class(owed, self._pulls)]
        self._first = first or next(iter(heads.values()), None)
        return self._first is not None

    def first(self) -> JobRecord:
        """Return the first job."""
        assert self._first is not None
        return self._first

    def pop(self, served: bool) -> bool:
        """Remove the first job, which is claimed if it is ``served``; the lists change by that."""
        job = self.first()
        self._after[job.ring, job.name] = job.ready
        if served and self._pulls:
            shares = self._shares
            owed = {ring: shares.get(ring, (1, 0.0))[1] for ring in self._pulls}
            note_served(owed, self._pulls, job.ring)
            noted = {ring: (shares.get(ring, (1, 0.0))[0], owed[ring]) for ring in owed}
            self._tables.put(SHARES, key_of(self._lane, self._priority), {**shares, **noted})
        return True


@final
class LaneTurn:
    """The turn of one lane in a claim, with the jobs that were read from its ready lists.

    Args:
      counts: of the jobs, at the begin of the claim.
      names: the names of the handlers of the instance that claims.
      limit: how many jobs of a list are read at once.
      homes: to which jobs may be left.
    """

    def __init__(
        self,
        queues: Queues,
        counts: Counts,
        lane: str,
        names: Collection[str],
        turns: FairTurns,
        budget: Budget,
        limit: int,
        homes: Homes | None = None,
    ) -> None:
        self._queues = queues
        self.lane = lane
        self._homes = homes
        self._limit = limit
        self._budget = budget
        self._turns = turns
        self.needs_isolation = False
        """Whether the next job is a suspect that could start if this instance ran fewer jobs."""
        self.needs_bytes = False
        """Whether the next job is too large for this step."""
        self.passes_over = False
        """Whether the next job was left to its home, and the one behind it is the next now."""
        listed = counts.waiting.get(lane, ())
        waiting = [name for name in names if name in listed]
        self._fronts: dict[int, _Front | _FairFront] = {}  # of the priorities that have jobs
        # the priority of the last job, to be read when that is claimed
        self._to_read: int | None = None
        lane_limit = budget.limit(lane)
        self._aging: float = math.inf if lane_limit is None else lane_limit.aging
        for priority in PRIORITIES if waiting else ():
            front: _Front | _FairFront
            if lane_limit is not None and lane_limit.fair:
                front = _FairFront(queues, lane, priority, waiting, lane_limit.weights)
            else:
                front = _Front(queues, lane, priority, waiting)
            if front.read(limit):
                self._fronts[priority] = front
        self.had_jobs: Final = bool(self._fronts)
        """Whether it has had ready jobs in this claim."""
        self._passed = {priority: turns.passed(lane, priority) for priority in self._fronts}

    @property
    def is_empty(self) -> bool:
        """Whether none of its ready jobs is left, besides those that were left to their homes."""
        if self._to_read is not None:
            if not self._fronts[self._to_read].read(self._limit):
                del self._fronts[self._to_read]
            self._to_read = None
        return not self._fronts

    def _heads(self) -> list[JobRecord]:
        """Return the first job of each priority that has a job, the highest priority first."""
        return list(map(_first, self._fronts.values()))

    @property
    def suspect(self) -> JobRecord | None:
        """A suspect at the front of one of the lane's ready lists; or None."""
        return self._suspect(self._heads())

    def _suspect(self, heads: Iterable[JobRecord]) -> JobRecord | None:
        for head in heads:
            if head.crashed_with and self._queues.max_runs_with(head) < math.inf:
                return head
        return None

    def first(self) -> JobRecord | None:
        """Return the job that is next in this lane, whether or not it may start; or None."""
        heads = self._heads()
        return self._choose(heads) if heads else None

    def _choose(self, heads: Sequence[JobRecord]) -> JobRecord:
        suspect = self._suspect(heads)
        if suspect is not None:
            return suspect
        if self._aging < math.inf:
            return min(heads, key=self._rank)  # the higher priority of equal ones
        for head in heads[:0:-1]:  # from the lowest priority up, without the highest
            if self._passed[head.priority] >= PASSED_OVER[head.priority]:
                return head
        return heads[0]

    def _rank(self, head: JobRecord) -> Fraction:
        """Return the rank of a priority by its first job: see `_queue.fair`."""
        # A wait begins with the submission, or when a delay or the pause before a retry is over; it
        # includes the time in which the session was closed.
        waits = head.submitted_at if head.due is None or head.why == "session" else head.due
        return Fraction(waits) - head.priority * Fraction(self._aging)

    def consume_before(self, job: JobRecord, most: int) -> int:
        """Return how many jobs go before one that is ready, ``most`` at most; once only.

        Of its own priority they are those that stand before it in the lists.
        """
        count = looked = 0
        while looked < most and job.priority in self._fronts:
            first = self._choose(self._heads())
            if first.id == job.id:
                break
            looked += 1
            count += first.priority != job.priority or place_on_list(first) < place_on_list(job)
            front = self._fronts[first.priority]
            if front.pop(served=False) and not front.read(self._limit):
                del self._fronts[first.priority]
        return count

    def next(self, isolation: _Isolation, most_bytes: float) -> JobRecord | None:
        """Return the next job of this lane; None: there is none, or it may not start here now."""
        self.passes_over = False
        if not self._budget.free(self.lane):
            return None
        if self.is_empty:
            return None
        heads = self._heads()
        job = self._choose(heads)
        # Before the isolation: for a suspect that its rate refuses no other lane has to wait.
        if not self._budget.rates_allow(job):
            return None
        chosen = job.priority
        if (
            job.crashed_with
            and self._queues.max_runs_with(job) < math.inf
            and not isolation.allows(job)
        ):
            self.needs_isolation = True
            return None
        if most_bytes < math.inf and bytes_of(job) > most_bytes:
            self.needs_bytes = True
            return None
        if self._homes is not None and self._homes.keep(job):
            if self._budget.is_rated(self.lane):  # a start that may never come is not charged
                return None
            self.passes_over = True
        else:
            for head in heads:
                if head.priority < chosen:
                    self._put_passed(head.priority, self._passed[head.priority] + 1)
            self._put_passed(chosen, 0)
        self._budget.take(job)  # also for its home: what comes behind it must not have its slot
        if self._fronts[chosen].pop(not self.passes_over):
            self._to_read = chosen  # later: what this claim moves is behind it
        return None if self.passes_over else job

    def _put_passed(self, priority: int, times: int) -> None:
        if times != self._passed[priority]:
            self._passed[priority] = times
            self._turns.put_passed(self.lane, priority, times)
