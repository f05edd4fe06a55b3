"""Waiting for lanes to be idle, empty or to have room.

All tasks that wait for the same condition wait in one parking lot. If a busy lane keeps a condition
from being true, the condition is checked again when no job runs in that lane, or no job waits in
it: a thousand waiters cost a busy lane nothing. Other conditions are checked after each batch. A
wait inside a job leaves out the jobs that cannot go on before that job has ended; so these
conditions are also checked when a job begins to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Protocol, final

import attrs
import trio
from trio.lowlevel import ParkingLot, enable_ki_protection

from .._actors.actor import Actor
from .._actors.job import AnyJob


class Held(Protocol):
    """A set of jobs that cannot go on."""

    @property
    def held(self) -> Iterable[AnyJob]:
        """The running jobs that are known to be in the set."""

    def running(self, scheduler: Any, /) -> list[AnyJob]:
        """Return the running jobs of these lanes that are in the set."""

    def waiting(self, scheduler: Any, /) -> list[AnyJob]:
        """Return the waiting jobs of these lanes that are in the set."""


@final
@attrs.define(eq=False)
class Watch:
    """A condition, and the tasks that wait for it."""

    obstacle: Callable[[], Actor | bool]
    """Returns False if the condition is true; an actor if the condition stays false until no job
    runs in that actor, or no job waits in it; True if any batch may make it true."""
    jobs: tuple[AnyJob, ...] = ()
    """The jobs inside which a task waits for it, the innermost first."""
    is_held_up: Callable[[Held], bool] = lambda left_out: False
    """Whether the condition cannot come true as long as some jobs cannot go on."""
    behind: Actor | None = attrs.field(default=None, init=False)
    """The obstacle, if it is an actor."""
    lot: ParkingLot = attrs.field(factory=ParkingLot, init=False)


@final
class Watches:
    """The conditions that tasks wait for now."""

    def __init__(self, inside: dict[Watch, Watches]) -> None:
        self._watched: Final[dict[Hashable, Watch]] = {}
        self.inside: Final = inside
        """{condition, of any lanes of this run, that a task in a job waits for: its `Watches`}"""
        self.due: Final[dict[Watch, Hashable]] = {}
        """{condition that is checked after the present batch: its key}"""
        # {actor: {condition that the actor keeps from being true: its key}}
        self._behind: Final[dict[Actor, dict[Watch, Hashable]]] = {}

    @enable_ki_protection
    async def wait(self, key: Hashable, watch: Watch) -> None:
        """Wait until the condition is true. A checkpoint.

        Equal keys must mean the same condition. Cancelling the wait leaves nothing behind.
        """
        if not watch.jobs and not watch.obstacle():
            await trio.lowlevel.checkpoint()
            return
        if key in self._watched:
            watch = self._watched[key]
        else:
            self._watched[key] = watch
            self.due[watch] = key
        has_come = False
        try:
            if watch.jobs:
                self.inside[watch] = self
                has_come = not watch.obstacle()
                self.check_inside()  # if two jobs wait for each other's lanes, both go on
            if not has_come:
                await watch.lot.park()
        finally:
            if not watch.lot and self._watched.get(key) is watch:
                self._forget(key, watch)
        if has_come:  # its job goes on, so no other wait leaves this job out any more
            await trio.lowlevel.checkpoint()

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
        """Wake the tasks whose conditions are true now."""
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
            elif watch.lot:
                true.append((watch, key))
        for watch, key in true:  # after all were checked: a job that is woken goes on
            if watch in self.due:  # else an instrument of Trio's, called at a wake-up, was here
                self._forget(key, watch)
                watch.lot.unpark_all()
