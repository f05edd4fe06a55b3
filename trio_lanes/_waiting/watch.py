"""Waiting for lanes to be idle, empty or to have room.

Whoever waits for the same condition waits in one place. A condition that is not true because a lane
is busy is looked at again when that lane runs nothing or nothing waits in it any more, so that a
thousand waiters cost a busy lane nothing. Others are looked at after each batch. A wait inside
a job leaves out the jobs that cannot go on before that job has ended; so these conditions are
looked at as well when a job begins to wait.
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
    """Jobs that cannot go on."""

    @property
    def held(self) -> Iterable[AnyJob]:
        """Running jobs that are known not to."""

    def running(self, scheduler: Any, /) -> list[AnyJob]:
        """The running jobs of these lanes that cannot."""

    def waiting(self, scheduler: Any, /) -> list[AnyJob]:
        """The waiting jobs of these lanes that cannot."""


@final
@attrs.define(eq=False)
class Watch:
    """A condition, and who waits for it."""

    obstacle: Callable[[], Actor | bool]
    """What keeps the condition from being true: an actor if it is not before that one runs nothing
    or nothing waits there; True if that may end with any batch; False if it is true."""
    jobs: tuple[AnyJob, ...] = ()
    """The jobs inside which it is waited for, the innermost first."""
    is_held_up: Callable[[Held], bool] = lambda left_out: False
    """Whether the condition cannot come true as long as some jobs cannot go on."""
    behind: Actor | None = attrs.field(default=None, init=False)
    """The obstacle, if it is an actor."""
    lot: ParkingLot = attrs.field(factory=ParkingLot, init=False)


@final
class Watches:
    """The conditions that somebody waits for now."""

    def __init__(self, inside: dict[Watch, Watches]) -> None:
        self._watched: Final[dict[Hashable, Watch]] = {}
        self.inside: Final = inside
        """{condition of any lanes of this run that is waited for inside a job: its `Watches`}"""
        self.due: Final[dict[Watch, Hashable]] = {}
        """{to be looked at after the present batch: its key}"""
        self._behind: Final[dict[Actor, dict[Watch, Hashable]]] = {}  # the others, likewise

    @enable_ki_protection
    async def wait(self, key: Hashable, watch: Watch) -> None:
        """Wait until the condition has been true after a batch, or is now. A checkpoint.

        Equal keys must mean the same condition. Cancelling it leaves nothing behind.
        """
        if not watch.jobs and not watch.obstacle():
            await trio.lowlevel.checkpoint()
            return
        if key in self._watched:
            watch = self._watched[key]
        else:
            self._watched[key] = watch
            self.due[watch] = key
        try:
            if watch.jobs:
                self.inside[watch] = self
                has_come = not watch.obstacle()
                self.check_inside()  # of two jobs that wait for each other, both go on
                if has_come:
                    await trio.lowlevel.checkpoint()
                    return
            await watch.lot.park()
        finally:
            if not watch.lot and self._watched.get(key) is watch:
                self._forget(key, watch)

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
        """``actor`` is no obstacle any more: what else is will be seen after the batch."""
        actor.watched = False
        for watch, key in self._behind.pop(actor).items():
            watch.behind = None
            self.due[watch] = key

    def check_inside(self) -> None:
        """A job has begun to wait: wake those inside jobs who wait for what is true by that."""
        for watches in dict.fromkeys(self.inside.values()):
            watches.check()

    def check(self) -> None:
        """Wake the tasks that wait for what is true now."""
        true: list[tuple[Watch, Hashable]] = []
        for watch, key in list(self.due.items()):
            obstacle = watch.obstacle()
            if obstacle is True:
                continue
            if obstacle:
                del self.due[watch]
                obstacle.watched = True
                watch.behind = obstacle
                self._behind.setdefault(obstacle, {})[watch] = key
            elif watch.lot:
                true.append((watch, key))
        for watch, key in true:  # after all were looked at: a job that is woken goes on
            if watch in self.due:  # else one of Trio's hooks that is told of a wake-up was here
                self._forget(key, watch)
                watch.lot.unpark_all()
