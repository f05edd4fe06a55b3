"""The engine of stores of tables: accept, step, join, beat.

Theory of operation

The rules are synchronous functions over tables (`Tables`). Each call of an engine is one
transaction of its store, and the store makes it atomic. All that must survive a crash is in the
tables. Calls of an instance name its incarnation, and an engine does not remember it: a request
that comes late names an incarnation that is gone, and does nothing.

A job is accepted (`Engine.enqueue`): it joins the tail of its session's queue, or is parked until
it is due. The head of a queue is on the ready list of its lane. `Engine.step` finishes runs, queues
parked jobs that are due, and claims ready jobs within the budgets (`claims`, `budget`). A claim
gives the job a fence; the run finishes under that fence. `Engine.join` and `Engine.beat` find
instances whose lease has expired and give back their jobs.

Invariants, true between any two transactions:

1. A job in a queue keeps its place until it has ended: while it waits, while it runs, and between
   attempts. The exceptions are a job with ``RetryPolicy(order="requeue")`` between attempts, a
   dead job unless the rule ``hold`` keeps its session closed, and a job that is put first: it gets
   a place before all that wait, and so does the head that stays before it.
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
10. The claims of an instance's last step are its RUNNING jobs whose fence is above
   `LastStep.fences_after`. So a step that is asked for again finds its claims, however its answer
   was lost. No other instance can have given them back while the instance has its lease.
11. Tables may come back as they were before, under instances that live. Then a RUNNING job whose
   instance knows nothing of it, or a request, is found by that instance's next `acts.runs.Compare`,
   and a run that the tables lack is cancelled there.

`inspection.check` compares the tables with these, but for the last.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar, final

import attrs

from ... import LaneError, LaneFullError, UnknownLaneError
from .._contract.amounts import to_data
from .._contract.errors import KeyConflictError, StoreError
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
    StoreActivity,
    SubmittedJob,
    Succeeded,
)
from .._contract.state import (
    CANCELLED,
    DEAD,
    ENDED,
    EXPIRED,
    FAILED,
    PARKED,
    SUCCEEDED,
    WAITING,
    WITHOUT_RESULT,
)
from . import fair, lines
from .affinity import note_home
from .budget import Budget
from .claims import Claims, claim_of, forget_turns
from .history import forgiven
from .holds import forget_holds
from .job_record import JobRecord
from .lane_limits import configured, limit_of
from .queues import Queues
from .tables import FIRES, GROUPS, INSTANCES, LIMITS, RULES, LastStep, Tables, silent_for

T = TypeVar("T")

MAX_FORGOTTEN: Final = 500
"""How many ended jobs a step deletes at most."""
LEAST_INTERVAL: Final = 0.1
"""Seconds between two heartbeats below which they tell no rates of commits."""
FORGET_LANES_EVERY: Final = 60.0
"""Seconds between two looks of an instance for lanes of templates to forget."""


def digest(payload: str) -> str:
    """Return the hash of a payload: kept of a job with a key when its payload is deleted.

    The order of the fields of an object makes no difference.
    """
    try:
        payload = json.dumps(json.loads(payload), sort_keys=True)
    except (RecursionError, ValueError):  # nor can the worker read it
        pass
    return hashlib.blake2b(payload.encode(), digest_size=16).hexdigest()


def is_refusal(error: Exception) -> bool:
    """Whether an act raised an error by its rule, and no fault of the store or of the rules did."""
    if isinstance(error, LaneError):
        return not isinstance(error, StoreError)
    return type(error) is ValueError  # the encoding of a text may raise one of its subclasses


@final
class Engine(Queues):
    """The rules, as one instance applies them to the tables of a store."""

    def __init__(self, tables: Tables, opening: Opening) -> None:
        super().__init__(tables, opening)
        self._claims: Final = Claims(self)
        self._forget_lanes_at: float | None = None
        before = dict(tables.of(LIMITS))
        for name, limit in opening.lanes.items():
            there = tables.of(LIMITS).get(name)
            if there is None or there.pause_only or (there.proposed and opening.worker):
                paused_until = limit.paused_until
                if there is not None and there.paused_until is not None:
                    paused_until = there.paused_until
                proposed = not opening.worker
                tables.put(
                    LIMITS,
                    name,
                    attrs.evolve(limit, paused_until=paused_until, proposed=proposed),
                )
        if before != tables.of(LIMITS):
            fair.relist_changed(tables, before)
        if opening.worker:
            self._open_as_worker()

    def _open_as_worker(self) -> None:
        tables, opening = self.tables, self.opening
        grouped = {member for group in tables.of(GROUPS).values() for member in group.members}
        for name, group in opening.groups.items():
            if name not in tables.of(GROUPS) and grouped.isdisjoint(group.members):
                tables.put(GROUPS, name, group)
        if tables.of(RULES).get("") is None:
            tables.put(RULES, "", opening.rules)

    # ---- acts that may be asked for again

    def once(self, ticket: str, act: Callable[[Engine], T]) -> T:
        """Do an act, unless the act with this ticket is decided; return its answer.

        An act without a ticket is always done. Whoever calls this keeps a refusal, if nothing was
        written before it: see `keep_refusal`.
        """
        if not ticket:
            return act(self)
        known = self.tables.answer(ticket, self.now)
        if known is None:
            result = act(self)
            self.tables.put_answer(ticket, result, self.now)
            return result
        (answer,) = known
        if isinstance(answer, Exception):
            raise type(answer)(*answer.args)  # its own, since a caller adds to its traceback
        return answer  # type: ignore[no-any-return]  # it is T

    def keep_refusal(self, ticket: str, refusal: Exception) -> None:
        """Keep that the act with a ticket was refused: another copy of it is not decided anew."""
        if ticket and self.tables.answer(ticket, self.now) is None:
            self.tables.put_answer(ticket, type(refusal)(*refusal.args), self.now)

    # ---- instances

    def join(
        self,
        instance: str,
        *,
        lease_until: float,
        former: str = "",
        lost: Sequence[tuple[int, int]] = (),
        held: Collection[int] = (),
        activity: StoreActivity | None = None,
    ) -> None:
        """Become a new incarnation, then give back the jobs of instances that are gone.

        If this is asked again, it only prolongs the lease, unless that is over.

        Args:
          instance: the id of the incarnation, which is also the ticket of this act.
          former: the former incarnation of this process. Its runs are given back without a crash.
          lost: (id, fence) of this process's runs that ended with its lease; they count no crash.
          held: fences of runs of ``former`` that have ended, and become runs of ``instance``. A run
            that ended at the very time of its cancellation is in ``lost`` as well.
          activity: what is known of this instance's commits.
        """
        if self.tables.answer(instance, self.now) is not None:
            self.beat(instance, lease_until, activity)
            return
        self.tables.put_answer(instance, None, self.now)
        for id, fence in lost:
            self._forgive(id, fence)
        for job in sorted(self.tables.running(former), key=lambda job: -job.fence):
            if job.fence in held:
                self.tables.update(job, instance=instance)
            else:
                self.give_back(job)
        self._drop_instance(former)
        tables, names = self.tables, self.opening.names
        host, pid = self.opening.host, self.opening.pid
        info = InstanceInfo(
            *(instance, host, pid, self.now, lease_until, tuple(sorted(names)), 0),
            lease_ttl=self.opening.lease_ttl if lease_until < math.inf else math.inf,
            activity=activity,
        )
        tables.put(INSTANCES, instance, info)
        self._reap(instance)
        self.work_ready = True

    def beat(
        self, instance: str, lease_until: float, activity: StoreActivity | None = None
    ) -> bool:
        """Prolong the lease, and say how commits go; return False if the lease is over."""
        if not self.is_alive(instance):
            return False
        info = self.tables.of(INSTANCES)[instance]
        if activity is not None:
            activity = _with_rates(activity, info, self.now)
        beaten = attrs.evolve(info, lease_until=lease_until, activity=activity)
        self.tables.put(INSTANCES, instance, beaten)
        self._reap(instance)
        return True

    def _reap(self, instance: str) -> None:
        """Remove other instances whose lease has expired; give back their jobs."""
        for info in self.tables.of(INSTANCES).values():
            if info.id != instance and info.lease_until <= self.now:
                runs, silent = len(self.tables.running(info.id)), silent_for(info, self.now)
                self.given_up.append(attrs.evolve(info, running=runs, silent=silent))
                self.remove_instance(info.id)

    def _forgive(self, id: int, fence: int) -> None:
        """Take back the crash of a run that ended because its lease was lost."""
        job = self.tables.get(id)
        if job is None or job.state in ENDED:
            return
        history = forgiven(job.history, fence)
        if history == job.history:
            return  # the run did not end by a crash, or it has not ended
        self.tables.update(
            job,
            crashes=max(0, job.crashes - 1),
            crashes_alone=job.crashes_alone - (job.crashed_with == 1),
            crashed_with=0,
            history=history,
        )
        if job.fence == fence and job.state is DEAD:  # this crash made it dead
            self.revive(job)

    def remove_instance(self, id: str) -> None:
        """End an incarnation: its runs are given back with a crash. It can be repeated."""
        self.crash(self.tables.running(id))
        self._drop_instance(id)
        self.work_ready = True

    def _drop_instance(self, id: str) -> None:
        lines.end_requests(self, id)
        self.tables.put(INSTANCES, id, None)
        self.tables.put_last_step(id, None)

    # ---- accepting

    def enqueue(self, batch: Sequence[SubmittedJob]) -> tuple[int, ...]:
        """Accept all jobs, or none. Return their ids.

        Answers are kept for a while, and a tuple of numbers costs Python's collector nothing.
        """
        lanes = self.tables.of(LIMITS)
        fresh: dict[str, int] = {}  # of this batch, by lane
        keyed: dict[str, SubmittedJob] = {}  # of this batch
        coalesced: dict[str, SubmittedJob] = {}  # of this batch
        for item in batch:
            limit = limit_of(lanes, item.lane)
            if limit is None:
                raise UnknownLaneError(item.lane, configured(self.tables.of(LIMITS)))
            if item.key is not None:
                if item.key in keyed:
                    _compare(item, _record(keyed[item.key], self.now))
                    continue
                known = self.tables.keyed(item.key)
                if known is not None and not self._gives_key_up(known, item):
                    _compare(item, known)
                    continue
                keyed[item.key] = item
            joins = item.coalesce is not None and self._check_joined(item, coalesced)
            if item.cost is not None:
                Budget(self.tables, self.now).check_units(item.lane, item.cost)
            most = limit.max_waiting
            if most != math.inf and not joins:
                fresh[item.lane] = fresh.get(item.lane, 0) + 1
                bound = self.tables.counts().bound.get(item.lane, 0)
                if bound + fresh[item.lane] > most:
                    raise LaneFullError(item.lane, most)
        return tuple(map(self._accept, batch))

    def _accept(self, item: SubmittedJob) -> int:
        if item.key is not None:
            known = self.tables.keyed(item.key)
            if known is not None and not self._gives_key_up(known, item):
                return known.id
            if known is not None and self.is_over(known):
                self.tables.delete(known)
            elif known is not None:
                if self.is_expired(known):
                    self.end(known, EXPIRED, "{}")
                self.tables.update(known, key=None)
        if item.coalesce is not None:
            joined = self._job_to_join(item)
            if joined is not None:
                if not joined.fence:
                    self._join_job(joined, item)
                return joined.id
            over = self.tables.coalesced(str(item.coalesce.key), begun=False)
            if over is not None:
                self.end(over, EXPIRED, "{}")
        job = _record(item, self.now)
        if job.session is not None and job.state is WAITING:
            self.promote_session(job.session)
        job.id = self.tables.next_number()
        if job.state is WAITING:
            self.append(job)
        if job.state is PARKED or job.expires is not None:
            self.work_ready = True  # the worker may be sleeping until a later time
        self.tables.insert(job)
        self.accepted.append(job.id)
        return job.id

    def _gives_key_up(self, known: JobRecord, item: SubmittedJob) -> bool:
        """Whether a job leaves its key to a further submission, which begins anew."""
        if item.key_after == "failure" and (
            known.state in WITHOUT_RESULT or self.is_expired(known)
        ):
            return True
        return self.is_over(known)

    def _check_joined(self, item: SubmittedJob, of_batch: dict[str, SubmittedJob]) -> bool:
        """Whether a submission joins a job, of the store or of this batch, with which it agrees."""
        assert item.coalesce is not None
        key = str(item.coalesce.key)
        first = of_batch.get(key)
        known = self._job_to_join(item) if first is None else _record(first, self.now)
        if known is None:
            of_batch[key] = item
        else:
            _compare(item, known)
        return known is not None

    def _job_to_join(self, item: SubmittedJob) -> JobRecord | None:
        """Return the job that a submission with ``coalesce`` joins; None: it becomes a job."""
        assert item.coalesce is not None
        key = str(item.coalesce.key)
        waiting = self.tables.coalesced(key, begun=False)
        if waiting is not None and not self.is_expired(waiting):
            return waiting
        drops = item.coalesce.while_running == "drop"
        return self.tables.coalesced(key, begun=True) if drops else None

    def _join_job(self, job: JobRecord, item: SubmittedJob) -> None:
        """Let a job that waits stand for a further submission, too."""
        assert item.coalesce is not None
        changes: dict[str, object] = {}
        if item.coalesce.keep == "latest":
            newest = _record(item, self.now)
            for field in ("payload", "timeout", "retry", "cost", "headers", "expires", "priority"):
                changes[field] = getattr(newest, field)
            if job.priority != item.priority and job.ready is not None:
                if job.party is not None:
                    fair.leave(self.tables, job, claimed=False)
                self.tables.update(job, priority=item.priority, ready=None)
                self._set_ready(job)  # behind its new equals, as with a new priority in the core
                changes |= {"ready": job.ready, "shelf": job.shelf}
        if job.state is PARKED:
            until = min(self.now + item.delay, job.submitted_at + item.coalesce.max_wait)
            changes["due"] = max(self.now, until)
        if changes:
            self.tables.update(job, **changes)
        self.work_ready = True  # it may start earlier than a worker knows

    def take_in(self, item: SubmittedJob, due: float, refused: Exception | None = None) -> None:
        """Accept a job that its submitter has committed already, so that nothing refuses it.

        If it cannot be accepted, it is kept as a dead job without its key, for a person.

        Args:
          due: when the job joins its session's queue.
          refused: why it cannot be accepted, if that is known.
        """
        known = None if item.key is None else self.tables.keyed(item.key)
        if known is not None and not self.is_over(known):
            try:
                _compare(item, known)
                return
            except KeyConflictError as error:
                refused = error
        if refused is None:
            self._accept(attrs.evolve(item, delay=max(0.0, due - self.now)))
            return
        job = _record(attrs.evolve(item, key=None, delay=0.0, expires=None), self.now)
        job.id = self.tables.next_number()
        job.state = DEAD
        job.error = type(refused).__name__
        job.outcome = json.dumps({"type": job.error, "message": str(refused), "traceback": ""})
        self.tables.insert(job)
        self._count_end(job, DEAD)

    # ---- working

    def step(self, instance: str, number: int, finished: Sequence[Finish], room: int) -> Step:
        """Finish runs, and claim up to ``room`` jobs; or answer the same step again."""
        if not self.is_alive(instance):
            # nothing is due for an incarnation that has ended: it would ask again and again
            return Step((), tuple(finish.fence for finish in finished), (), None)
        last = self.tables.last_step(instance)
        if last is not None and number <= last.number:
            return self._step_again(instance, number, last)
        stale = tuple(finish.fence for finish in finished if not self._finish(finish))
        none_expired = self.promote()
        self.tables.forget_due(self.now, MAX_FORGOTTEN)
        self._forget_lanes()
        after = self.tables.last_number()
        # what has expired never starts: with very many due jobs, the next steps claim
        claims = self._claims.take(instance, room if none_expired else 0)
        self.tables.put_last_step(instance, LastStep(number, after, stale, room - len(claims)))
        closes = last is not None and last.room > room == 0  # what was left to it is free
        # this instance has seen what the transaction has changed, but another may use it
        changed = self.work_elsewhere or self.work_ready or bool(finished) or closes
        self.work_elsewhere: bool = changed and self._is_work_left()
        self.work_ready: bool = self._claims.unfinished
        due = self.next_due(also=self._claims.due)
        return Step(tuple(claims), stale, self._cancels(instance), due, self._fires())

    def _is_work_left(self) -> bool:
        """Whether a job waits, will be due, or wants its slot back."""
        tables = self.tables
        is_due = tables.next_due() is not None
        return is_due or bool(tables.counts().waiting or tables.runs().slot_requests())

    def _forget_lanes(self) -> None:
        """Forget, now and then, the rows of lanes of templates that have no jobs any more."""
        if self._forget_lanes_at is None or self._forget_lanes_at > self.now:
            self._forget_lanes_at = self._forget_lanes_at or self.now + FORGET_LANES_EVERY
            return
        self._forget_lanes_at = self.now + FORGET_LANES_EVERY
        tables = self.tables
        for name, limit in tables.of(LIMITS).items():
            if limit.pause_only and (limit.paused_until or 0.0) <= self.now:
                tables.put(LIMITS, name, None)
        forget_turns(tables)
        forget_holds(tables)
        tables.forget_unused(self.now)

    def _step_again(self, instance: str, number: int, last: LastStep) -> Step:
        if number < last.number:
            return Step((), (), (), None)
        claimed = [job for job in self.tables.running(instance) if job.fence > last.fences_after]
        claimed.sort(key=lambda job: job.fence)
        # a limit that keeps jobs from starting is found by the next step, which comes at once
        self.work_ready = True
        claims = tuple(map(claim_of, claimed))
        return Step(claims, last.stale, self._cancels(instance), self.next_due(), self._fires())

    def _fires(self) -> float | None:
        """Return the seconds until a schedule falls due; None: there is none."""
        first = self.tables.of(FIRES).get("")
        return None if first is None else max(0.0, first + self.tables.ahead_of_wall() - self.now)

    def _cancels(self, instance: str) -> tuple[tuple[int, int], ...]:
        return tuple((job.id, job.fence) for job in self.tables.runs().cancelled(instance))

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
            self.postpone(job, outcome)
        elif isinstance(outcome, Released):
            self.give_back(job)
        else:
            assert isinstance(outcome, Cancelled)
            self.end(job, CANCELLED, job.cancel or "{}")
        if self.opening.affinity and not isinstance(outcome, Released):
            note_home(self, job)
        return True


def _with_rates(activity: StoreActivity, info: InstanceInfo, now: float) -> StoreActivity:
    """Return the activity of an instance with its rates since its last heartbeat, ``info``."""
    before, seconds = info.activity, silent_for(info, now)
    image_at = activity.image_at
    activity = attrs.evolve(
        activity, image_age=None if image_at is None else max(0.0, now - image_at)
    )
    if before is None or seconds < LEAST_INTERVAL or activity.commits < before.commits:
        return activity  # it counts anew if the store was opened anew
    made, late = activity.commits - before.commits, activity.late - before.late
    return attrs.evolve(
        activity, commits_a_second=made / seconds, late_share=late / max(1, made + late)
    )


def _record(item: SubmittedJob, now: float) -> JobRecord:
    job = JobRecord(  # by position, since arguments by name take twice as long
        0,  # its id is set when it is accepted
        item.name,
        item.lane,
        item.session,
        item.priority,
        item.payload,
        item.timeout,
        WAITING,
        now,
        item.key,
        None if item.key is None else digest(item.payload),
        item.retry,
        None if item.cost is None else json.dumps(to_data(item.cost)),
        item.headers,
        item.run_at,
        item.owner,
    )
    if item.delay > 0:
        job.state, job.due, job.why = PARKED, now + item.delay, "delay"
    if item.expires is not None:
        job.expires = now + item.expires
    if item.coalesce is not None:
        job.coalesce = str(item.coalesce.key)
    return job


def _compare(item: SubmittedJob, known: JobRecord) -> None:
    key = item.key if item.coalesce is None else str(item.coalesce.key)
    assert key is not None
    for field, same in (
        ("name", item.name == known.name),
        ("session", item.session == known.session),
        ("lane", item.lane == known.lane),
        ("payload", item.key is None or known.digest == digest(item.payload)),
    ):
        if not same:
            raise KeyConflictError(key, known.id, field)
