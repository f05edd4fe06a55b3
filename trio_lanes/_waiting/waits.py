"""The waits of tasks for jobs and for room: begun, ended, and refused if they can never end.

A wait is recorded at both ends: at the job that the task waits for, which wakes the task, and at
the job *inside* which the task waits, if any. The waits inside jobs are in a table that belongs to
the Trio run (`JobsByTask.waits`), since they may lead through several `open_lanes`. With them
`deadlock` finds the waits that can never end; here these end in errors.

A wait that begins or ends changes no lane, so it is no act, and needs no batch. What may follow
from it is one: a request for room is refused, a cancelled job goes on without its slot. The loop
does these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, final

import outcome
import trio

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.state import WAITING
from .._actors.wait import RoomRequest, Wait, Waiter
from .._config.errors import LaneDeadlockError
from . import deadlock
from .current import JobsByTask
from .room import Room
from .watch import Watches


class Acts(Protocol):
    """What waits ask of the loop of their lanes."""

    def check_thread(self) -> None: ...
    def batch(self) -> AbstractContextManager[None]: ...
    def call_soon(self, effect: Callable[..., object], *args: Any) -> None: ...
    def refuse(self, request: RoomRequest, error: Exception) -> None: ...


@final
class TaskWaits:
    """The waits for the jobs, and inside the jobs, of one `open_lanes`."""

    def __init__(
        self,
        acts: Acts,
        table: JobsByTask,
        room: Room,
        watches: Watches,
        tell_refused: Callable[[LaneDeadlockError], object],
    ) -> None:
        self._acts: Final = acts
        self._table: Final = table
        self._room: Final = room
        self._watches: Final = watches
        self._tell_refused: Final = tell_refused
        self.inside: Final = table.waits  # of the whole Trio run

    # ---- a wait begins, and ends

    def begin(self, wait: Wait) -> None:
        """Register ``wait``.

        Raises:
          LaneDeadlockError: if it would never end; then nothing has changed.
          RuntimeError: in another thread.
        """
        self._acts.check_thread()
        target, kin = wait.target, self._table.kin
        if target is not None:
            target._waiters = target._waiters or {}
            target._waiters[wait.task] = wait
        if kin is not None and wait.job is not None:
            kin.began(wait, self)
        if wait.job is None:
            return
        try:
            self.count(wait)
        except LaneDeadlockError as error:
            self.forget(wait)
            self._tell_refused(error)
            raise
        except BaseException:  # the stack is too deep
            self.forget(wait)
            raise

    def count(self, wait: Wait) -> None:
        """Register ``wait`` as one of its job.

        Raises:
          LaneDeadlockError: if it would never end.
        """
        target, job, table = wait.target, wait.job, self._table
        assert job is not None
        job._waits = job._waits or {}
        job._waits[wait.task] = wait
        self.inside[wait] = None
        if target is None or target._state is WAITING:
            table.seeking[wait.task] = None
        if len(self.inside) == 1:  # without another wait, each job can end
            table.proved = True
        if table.kin is not None:
            table.kin.changed(job)
        try:
            released = deadlock.check(wait, table)
        except LaneDeadlockError:
            if table.kin is None or not table.kin.verify():
                raise
            # some of the waits by which it was found are none of their jobs any more
            released = deadlock.check(wait, table)
        _release(released)
        if self._watches.inside:
            # A wait for lanes inside ``target`` leaves out this job from now on.
            self._watches.check_inside()

    def forget(self, wait: Wait) -> None:
        """Remove ``wait``, which ends, from all tables."""
        if wait.target is not None:
            assert wait.target._waiters is not None
            del wait.target._waiters[wait.task]
        if wait.job is not None:
            self.uncount(wait)
        elif self._table.kin is not None:
            self._table.kin.ended(wait)

    def uncount(self, wait: Wait) -> None:
        """``wait`` is one of its job no more."""
        job = wait.job
        assert job is not None
        assert job._waits is not None
        del job._waits[wait.task]
        del self.inside[wait]
        self._table.seeking.pop(wait.task, None)
        if self._table.kin is not None:
            self._table.kin.changed(job)

    def end(self, wait: Wait) -> None:
        """Wake the task of ``wait``, whose event has come."""
        self.forget(wait)
        trio.lowlevel.reschedule(wait.task)

    def add_waiter(self, target: AnyJob, waiter: Waiter) -> None:
        """Tell ``waiter`` of the end of ``target``, or of its start, when it comes."""
        self._acts.check_thread()
        target._waiters = target._waiters or {}
        target._waiters[waiter] = waiter
        if target.done:
            self._acts.call_soon(self.wake, target)

    def wake(self, target: AnyJob) -> None:
        """Tell the waiters of ``target`` that it has started, or has settled. An effect."""
        waiters = target._waiters or {}
        for key, waiter in list(waiters.items()):
            # A waiter that is called may end the wait of another waiter.
            if (waiter.until_started or target.done) and key in waiters:
                if not isinstance(waiter, Wait):  # a Wait is forgotten as a whole
                    del waiters[key]
                waiter.job_ended(target)
            else:  # from now on it waits for an end
                self._table.seeking.pop(key, None)

    # ---- waits that can never end

    def check_accepted(self, job: AnyJob) -> None:
        """Find the waits that can never end because ``job`` waits now, and end them in errors."""
        if self.inside:
            any_requests = bool(self._room.length)
            for goal in deadlock.goals_of_accepted(job, self.inside, any_requests=any_requests):
                self.break_deadlocks(goal)

    def limits_changed(self, *, ends_waits: bool, known: Collection[AnyJob] = ()) -> None:
        """Look at all waits inside jobs by the present limits.

        With ``ends_waits`` those that can never end do so in errors, but for those of ``known``
        jobs: these were stuck before, since the application had lowered a limit.
        """
        self.look_at_stray()
        stuck = deadlock.stuck_jobs(self.inside)
        if ends_waits and stuck:
            for job in [job for job in stuck if job not in known]:
                self.break_deadlocks(deadlock.end_of(job))
            stuck = deadlock.stuck_jobs(self.inside)
        self._table.proved = not stuck

    def look_at_stray(self) -> None:
        """Look again at the waits that were of no job when they began."""
        if self._table.kin is not None:
            self._table.kin.look_at_all()

    def break_deadlocks(self, goal: deadlock.Goal) -> None:
        """End waits in errors until ``goal`` can be reached."""
        while self.inside:
            found = deadlock.broken_by(goal, self.inside)
            if not isinstance(found, tuple):
                _release(found)
                return
            # else some of these waits are none of their jobs any more: look again
            if self._table.kin is None or not self._table.kin.verify():
                self.fail(*found)

    def fail(self, wait: Wait, error: LaneDeadlockError) -> None:
        """End ``wait``, of these or other lanes, in ``error``: it could never end by itself."""
        assert wait.job is not None
        own, request = waits_of(wait.job), wait.request
        own._tell_refused(error)
        if request is not None:  # for room; these may be other lanes again
            waits_of(request.job)._acts.refuse(request, error)
            return
        own.forget(wait)
        wait.failed()
        trio.lowlevel.reschedule(wait.task, outcome.Error(error))


def waits_of(job: AnyJob) -> TaskWaits:
    """Return the waits of the lanes of ``job``, which may be those of another `open_lanes`."""
    waits = job._keeper.waits
    assert isinstance(waits, TaskWaits)
    return waits


def _release(jobs: Iterable[AnyJob]) -> None:
    """Let cancelled ``jobs``, of whatever lanes, go on without the slots they want."""
    for job in jobs:
        with waits_of(job)._acts.batch():
            lane: LaneActor = job._lane
            lane.touch()  # when it is served, it lets them go on if no slot can come
