"""Waiting for lanes to be idle, empty or to have room.

All tasks that wait for the same condition wait in one parking lot. If a busy lane keeps a condition
from being true, the condition is checked again when no job runs in that lane, or no job waits in
it: a thousand waiters cost a busy lane nothing. Other conditions are checked after each batch.

A wait inside a job leaves out the jobs that cannot go on before that job has ended (`left_out`); so
these conditions are also checked when a job begins to wait for another.

A wait for lanes inside a job is *held up* by other jobs if it cannot end as long as these do not.
Waits that hold up each other are a deadlock: the latest whose end lets others go on ends in an
error. It takes two such waits: one alone leaves out all that it could hold up itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, final

import attrs
import trio
from trio.lowlevel import ParkingLot, enable_ki_protection

from .._actors.actor import Actor
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._config.errors import LaneDeadlockError
from .current import JobsByTask
from .deadlock import called, holdings
from .left_out import LeftOut

_CURE: Final = "leave one of these waits out, or wait outside of these jobs"

FindLeftOut: TypeAlias = Callable[[Iterable[AnyJob]], LeftOut]
"""Finds the jobs of some lanes that cannot go on before the given jobs have ended."""


@final
@attrs.define(eq=False)
class Watch:
    """A condition on lanes, and the tasks that wait for it."""

    words: str
    """What the tasks wait for."""
    jobs: tuple[AnyJob, ...]
    """The jobs inside which a task waits for it, the innermost first."""
    left_out: FindLeftOut
    actors: Callable[[], Sequence[Actor]] = tuple
    """The lanes in which fewer jobs are to wait."""
    fewer_than: float = math.inf
    idle: bool = False
    """Whether no job is to run in these lanes."""
    ended: Collection[AnyJob] = ()
    """The jobs that are to have ended."""
    behind: Actor | None = attrs.field(default=None, init=False)
    """The obstacle, if it is an actor."""
    tasks: dict[trio.lowlevel.Task, None] = attrs.field(factory=dict, init=False)
    """The tasks."""
    lot: ParkingLot = attrs.field(factory=ParkingLot, init=False)
    error: LaneDeadlockError | None = attrs.field(default=None, init=False)
    """The error in which the waits of the tasks end."""

    def obstacle(self) -> Actor | bool:
        """Return False if the condition is true; an actor if the condition stays false until no
        job runs in that actor, or no job waits in it; True if any batch may make it true."""
        actors, most = self.actors(), self.fewer_than
        if not self.jobs and most in (1, math.inf):  # the usual case
            return next(filter(self._is_busy, actors), False)
        waiting = sum(actor.waiting for actor in actors)
        running = sum(not job.done for job in self.ended)
        if self.idle:
            running += sum(actor.active for actor in actors)
        if not running and waiting < most:
            return False
        if not self.jobs:
            return True
        left_out = self.left_out(self.jobs)
        # the cheap questions first: for a job that submits many jobs, each of these is a check
        if running and (
            running > len(self._awaited(left_out.candidates(), actors))
            or running > len(self._awaited(left_out.running(), actors))
        ):
            return True
        if waiting < most:
            return False
        if not left_out.may_have_waiting():
            return True
        return waiting - len(_of(actors, left_out.waiting())) >= most

    def is_held_up(self, by: LeftOut) -> bool:
        """Whether it cannot come true as long as the jobs that are left out in ``by`` do not end,
        apart from those that it leaves out itself."""
        actors, own = self.actors(), self.left_out(self.jobs)
        running = self._awaited(by.candidates(), actors)
        if any(by.has(job) and not own.has(job) for job in running):
            return True
        if sum(actor.waiting for actor in actors) < self.fewer_than:
            return False
        return len({*_of(actors, by.waiting())}.difference(own.waiting())) >= self.fewer_than

    def _is_busy(self, actor: Actor) -> bool:
        return bool((self.idle and actor.active) or (self.fewer_than == 1 and actor.waiting))

    def _awaited(self, running: Iterable[AnyJob], actors: Sequence[Actor]) -> list[AnyJob]:
        """Return those of ``running`` that have to end."""
        if self.idle:
            return _of(actors, running)
        return [job for job in running if job in self.ended]


def _of(actors: Sequence[Actor], jobs: Iterable[AnyJob]) -> list[AnyJob]:
    """Return those of ``jobs`` that are in any of ``actors``."""
    return [job for job in jobs if job._lane in actors or job._session_lane in actors]


@final
class Watches:
    """The conditions on some lanes that tasks wait for now."""

    def __init__(
        self,
        table: JobsByTask,
        lanes: Mapping[str, LaneActor],
        tell_refused: Callable[[LaneDeadlockError], None],
    ) -> None:
        self._table: Final = table
        self._lanes: Final = lanes  # {name: global lane that is alive}
        self._tell_refused: Final = tell_refused
        self._watched: Final[dict[Hashable, Watch]] = {}
        self.inside: Final = table.watches
        self.due: Final[dict[Watch, Hashable]] = {}
        """{condition that is checked after the present batch: its key}"""
        # {actor: {condition that the actor keeps from being true: its key}}
        self._behind: Final[dict[Actor, dict[Watch, Hashable]]] = {}

    def left_out(self, jobs: Iterable[AnyJob]) -> LeftOut:
        """Return the jobs of these lanes that a wait inside ``jobs`` leaves out."""
        return LeftOut(jobs, self._lanes, self._table.waits)

    @enable_ki_protection
    async def wait(self, key: Hashable, watch: Watch) -> None:
        """Wait until the condition is true. A checkpoint.

        Equal keys must mean the same condition. Cancelling the wait leaves nothing behind.

        Raises:
          LaneDeadlockError: if this wait and waits for lanes of other jobs hold up each other.
        """
        if not watch.obstacle():
            await trio.lowlevel.checkpoint()
            return
        if key in self._watched:
            watch = self._watched[key]
        else:
            self._watched[key] = watch
            self.due[watch] = key
        task = trio.lowlevel.current_task()
        watch.tasks[task] = None
        try:
            if watch.jobs:
                self.inside[watch] = self
                self.refuse_deadlocks(watch)
                if self._table.kin is not None:
                    self._table.kin.look_soon(watch.jobs[0])
            if watch.error is None:
                await watch.lot.park()
        finally:
            del watch.tasks[task]
            if not watch.lot and self._watched.get(key) is watch:
                self._forget(key, watch)
        error = watch.error
        if error is not None:
            del watch  # it has the error
            try:
                raise error
            finally:
                del error  # a cycle with its traceback would keep the job alive

    def _forget(self, key: Hashable, watch: Watch) -> None:
        del self._watched[key]
        self.inside.pop(watch, None)
        self.due.pop(watch, None)
        actor = watch.behind
        if actor is not None:
            del self._behind[actor][watch]
            if not self._behind[actor]:
                self.look_at(actor)

    def look_at(self, actor: Actor) -> None:
        """``actor`` is no obstacle any more: check its conditions after the batch."""
        actor.watch(False)
        for watch, key in self._behind.pop(actor).items():
            watch.behind = None
            self.due[watch] = key

    def check_inside(self) -> None:
        """A job has begun to wait: wake tasks inside jobs whose conditions are true by that."""
        for watches in dict.fromkeys(self.inside.values()):
            watches.check()

    def check(self) -> None:
        """Wake the tasks whose conditions are true now, or can never come true."""
        true: list[tuple[Watch, Hashable]] = []
        for watch, key in list(self.due.items()):
            obstacle = watch.obstacle()
            if obstacle is True:
                continue
            if obstacle:
                del self.due[watch]
                obstacle.watch(True)
                watch.behind = obstacle
                self._behind.setdefault(obstacle, {})[watch] = key
            else:
                true.append((watch, key))
        for watch, key in true:  # after all were checked: a job that is woken goes on
            if watch in self.due:  # else an instrument of Trio's, called at a wake-up, was here
                self._forget(key, watch)
                watch.lot.unpark_all()
        self.refuse_deadlocks()

    def refuse_deadlocks(self, new: Watch | None = None) -> None:
        """End waits for lanes in errors until no waits hold up each other; ``new`` just begins."""
        while len(self.inside) > 1:
            # if no task is in its lot, the last one was cancelled, and is about to go on
            stuck = _held_up(
                watch
                for watch in self.inside
                if (watch.lot or watch is new) and self._is_of_its_job(watch)
            )
            if not stuck:
                return
            last = next(filter(partial(_lets_others_go, stuck), stuck[::-1]), stuck[-1])
            self.inside[last]._refuse(last, LaneDeadlockError(_describe(stuck)))

    def _is_of_its_job(self, watch: Watch) -> bool:
        """Whether a job waits for a task that waits for ``watch``."""
        kin, (job, *_) = self._table.kin, watch.jobs
        return kin is None or any(kin.job_for(task, job) is not None for task in watch.tasks)

    def _refuse(self, watch: Watch, error: LaneDeadlockError) -> None:
        watch.error = error
        self._forget(self.due[watch], watch)
        watch.lot.unpark_all()
        self._tell_refused(error)


def _held_up(watches: Iterable[Watch]) -> list[Watch]:
    """Return those of ``watches`` that cannot come true as long as their own jobs do not end."""
    held_up, left = None, [*watches]
    while left != held_up:
        held_up = left
        jobs = [job for watch in held_up for job in watch.jobs]
        by = {find: find(jobs) for find in {watch.left_out for watch in held_up}}
        left = [watch for watch in held_up if watch.is_held_up(by[watch.left_out])]
    return left


def _lets_others_go(stuck: list[Watch], watch: Watch) -> bool:
    """Whether others of ``stuck`` can come true once the job of ``watch`` goes on."""
    others = [other for other in stuck if other is not watch]
    return len(_held_up(others)) < len(others)


def _describe(stuck: Iterable[Watch]) -> str:
    """List the jobs whose waits for lanes hold up each other, and the cure."""
    lines = [
        f"  {called(watch.jobs[0])} {holdings(watch.jobs[0])}, and waits for {watch.words}"
        for watch in stuck
    ]
    return "\n".join(["this wait would never end:", *lines, f"cure: {_CURE}"])
