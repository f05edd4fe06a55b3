"""The walk from a job along the reasons of its wait to the roots, here and in durable lanes.

Theory of operation
-------------------
A job that waits has reasons, as `blocked_by` lists them. A reason is a *root*, a `Cause`, if no job
can end it (a pause, a rate, a delay, a limit of 0), or if a job that ends it is at work. All others
*lead* to jobs that wait themselves. All reasons of a job hold it, so each is followed. Of the jobs
that could end one reason, one is enough: the roots are those of the first that leads to a root
other than a deadlock. Only if there is none, a way that comes back to a job on it is a root: a
deadlock.

Of the jobs before it in the line of its lane a job needs no more than their number: what holds the
head of the line holds them all. So its reasons here are those of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, final

import attrs

from .reasons import REMEDIES, Cause

AWAITED: Final = "that it waits for"
HOLDER: Final = "with a slot of"

RELATIONS: Final = {
    "session": "of its session",
    "order": "of its session",
    "job": AWAITED,
    "room": 'in "{lane}", which has no room',
    "lock": 'with the lock "{lane}"',
    "quota": 'first for the quota "{lane}"',
}
"""What the jobs of a reason are to the one that waits, by the kinds that lead on."""

ROOTS: Final = {
    "delay": "its delay",
    "retry": "its next attempt",
    "suspect": "one more crash could make it dead, so it waits for an instance that runs few jobs",
    "pause": 'pause of "{lane}"',
    "concurrency": 'slots of "{lane}"',
    "group": 'slots of the group "{lane}"',
    "reservation": 'slots of the group "{lane}": those left are reserved for other lanes',
    "lent": "it has lent its slot",
    "room": 'room in "{lane}"',
    "lock": 'the lock "{lane}", which a task outside of a job has',
}
"""How `Cause.root` begins, by `Cause.kind`."""


class JobOnWay(Protocol):
    """What the walk knows of a job."""

    @property
    def id(self) -> int: ...
    @property
    def lane(self) -> str: ...


J = TypeVar("J", bound=JobOnWay)


@final
@attrs.frozen
class Lead(Generic[J]):
    """A reason that leads on, to jobs of which one has to go on."""

    jobs: Iterable[J]
    """In the order in which they are followed: those that can go on come first."""
    relation: str
    """What each is to the job that waits. If empty, its reasons are taken for those of that job."""
    then: Callable[[list[Cause]], list[Cause]] = lambda found: found
    """Makes of the roots found there, which may be none, those of the job that waits."""


Reason: TypeAlias = Cause | Lead[J]
_Asks: TypeAlias = Generator[J, None, list[Cause]]


@final
@attrs.define
class Walk(Generic[J]):
    """One walk, which asks for the reasons of one job after the other.

    It knows neither lanes nor a store, and awaits nothing, so it serves those who have to: iterate
    over it, and `answer` each job that it yields. At its bounds a root is unknown.
    """

    first: J
    jobs_left: int
    """For how many jobs it still asks."""
    longest_way: float
    """How many jobs a way has at most, the first among them."""
    deadlock_advice: str | None = None
    """What helps against a deadlock, if it is not as in `REMEDIES`."""
    found: list[Cause] = attrs.field(init=False, factory=list)
    """The roots, at the end."""
    _answer: tuple[Iterable[Reason[J]], Cause | None] = attrs.field(init=False, default=((), None))

    def __iter__(self) -> Iterator[J]:
        self.found = yield from self._roots_of(self.first, (self.first,))

    def answer(self, reasons: Iterable[Reason[J]], otherwise: Cause | None = None) -> None:
        """Go on with the reasons of the job that it has asked for.

        Its root is ``otherwise`` if none of them leads to any.
        """
        self._answer = reasons, otherwise

    def _roots_of(self, job: J, way: tuple[J, ...]) -> _Asks[J]:
        """Return the roots of ``job``: the last of ``way``, or one that stands for that."""
        self.jobs_left -= 1
        if self.jobs_left < 0 or len(way) > self.longest_way:
            return [root_of(job, "unknown", job.lane, "...")]
        yield job
        found: list[Cause] = []
        reasons, otherwise = self._answer
        for one in reasons:
            if isinstance(one, Cause):
                found.append(one)
            else:
                found += one.then((yield from self._follow(job, one, way)))
        return found if found or otherwise is None else [otherwise]

    def _follow(self, job: J, lead: Lead[J], way: tuple[J, ...]) -> _Asks[J]:
        """Return the roots of the first of the jobs that has one other than a deadlock."""
        stuck: list[Cause] = []
        for other in lead.jobs:
            step = ((other.id, lead.relation),) if lead.relation else ()
            if step and other in way:
                circle = tuple(one.id for one in way[way.index(other) :])
                root = f"deadlock of {', '.join(map(str, circle))}"
                more = {"jobs": circle, "advice": self.deadlock_advice}
                found = [root_of(job, "deadlock", other.lane, root, **more)]
            else:
                found = yield from self._roots_of(other, (*way, other) if step else way)
                found = [attrs.evolve(one, job=job.id, chain=step + one.chain) for one in found]
            if any(cause.kind != "deadlock" for cause in found):
                return found
            stuck = stuck or found
        return stuck


def root_of(job: JobOnWay, kind: str, lane: str, root: str | None = None, **more: Any) -> Cause:
    """Return a root that holds ``job`` itself.

    Its words and its advice are those of its kind, unless they are given.
    """
    words = ROOTS[kind].format(lane=lane) if root is None else root
    if more.get("advice") is None and kind in REMEDIES:
        more["advice"] = REMEDIES[kind].format(lane=lane)
    return Cause(job.id, kind, lane, words, **more)
