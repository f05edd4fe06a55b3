"""Waiting for lanes to be idle, empty or to have room.

Whoever waits for the same condition waits in one place. A condition that is not true because a lane
is busy is looked at again when that lane runs nothing or nothing waits in it any more, so that a
thousand waiters cost a busy lane nothing. Others are looked at after each transition. Inside a job,
those that wait for that job do not count, whether they began to before or begin to meanwhile; so
these conditions are looked at as well when a job begins to wait for another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Final, final

import attrs
import trio
from trio.lowlevel import ParkingLot, enable_ki_protection

from ._job import AnyJob

if TYPE_CHECKING:
    from ._actor import Actor


@final
@attrs.define(eq=False)
class Watch:
    """A condition, and who waits for it."""

    obstacle: Callable[[], Actor | bool]
    """What keeps the condition from being true: an actor if it is not before that one runs nothing
    or nothing waits there; True if that may end with any transition; False if it is true."""
    job: AnyJob | None = None
    """The job inside which it is waited for."""
    awaits: Callable[[AnyJob], bool] = lambda job: False
    """Whether that is a wait for the end of a job, which runs."""
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
        """{to be looked at after the present transition: its key}"""
        self._behind: Final[dict[Actor, dict[Watch, Hashable]]] = {}  # the others, likewise

    @enable_ki_protection
    async def wait(self, key: Hashable, watch: Watch) -> None:
        """Wait until the condition has been true after a transition, or is now. A checkpoint.

        Equal keys must mean the same condition. Cancelling it leaves nothing behind.
        """
        if not watch.obstacle():
            await trio.lowlevel.checkpoint()
            return
        if key in self._watched:
            watch = self._watched[key]
        else:
            self._watched[key] = watch
            self.due[watch] = key
        try:
            if watch.job is not None:
                self.inside[watch] = self
                self.check_inside()  # those for whom its job waits leave that out from now on
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

    def waiting_for(self, job: AnyJob, known: Collection[AnyJob]) -> set[AnyJob]:
        """The jobs, but for those ``known``, inside which lanes are waited for that run ``job``."""
        return {
            watch.job
            for watch in self.inside
            if watch.job is not None and watch.job not in known and watch.awaits(job)
        }

    def look_at(self, actor: Actor) -> None:
        """``actor`` is no obstacle any more: what else is will be seen after the transition."""
        actor.watched = False
        for watch, key in self._behind.pop(actor).items():
            watch.behind = None
            self.due[watch] = key

    def check_inside(self) -> None:
        """A job has begun to wait: wake those inside jobs who wait for what is true by that."""
        for watches in dict.fromkeys(self.inside.values()):
            watches.check()

    def check(self) -> None:
        """Wake whoever waits for what is true now."""
        for watch, key in list(self.due.items()):
            if watch not in self.due:  # one of Trio's hooks that is told of who is woken was here
                continue
            obstacle = watch.obstacle()
            if obstacle is True:
                continue
            if obstacle:
                del self.due[watch]
                obstacle.watched = True
                watch.behind = obstacle
                self._behind.setdefault(obstacle, {})[watch] = key
            elif watch.lot:
                self._forget(key, watch)
                watch.lot.unpark_all()
