"""What the model knows of a job, and the ways in which its body may end."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

State = Literal["WAITING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]


class Body(NamedTuple):
    """What a job's function does."""

    seconds: float = 0
    """How long it sleeps; with 0 it never blocks."""
    shielded: bool = False
    """Whether it does not hear of a cancellation meanwhile."""
    cleanup: float = 0
    """How long it goes on, shielded, after a cancellation that it has heard of."""
    fails: bool = False
    """Whether it raises at its end, else it returns."""
    child: Body | None = None
    """What it runs then, as a job of the lane "sub"; if anything, the three before are not said."""
    lends: bool = False
    """Whether it lends its slot meanwhile."""


class End(NamedTuple):
    """A way in which a body may end, or a job."""

    when: float
    state: State
    error: str | None


@dataclass(eq=False)
class ModelJob:
    key: int
    session: str | None
    lane: str
    priority: int
    owner: str | None
    place: int  # by submission, or by its last change of priority
    submitted: float
    timeout: float
    queue_timeout: float
    body: Body
    parent: ModelJob | None = None  # which runs it, and waits for it
    child: ModelJob | None = None
    state: State = "WAITING"
    error: str | None = None
    arrival: int | None = None  # the moment in which it came into its lane; None: it is not there
    started: float = inf
    settled: float = inf
    called: bool = False
    inside: bool = False  # whether its body has begun and not ended
    cuts: list[End] = field(default_factory=list)  # what may end its body early
    crashed: float = inf  # when it was cancelled with all others
    has_slot: bool = False
    has_lent: bool = False  # ever
    back: float = inf  # when it could go on after its child, with a slot

    @property
    def waits(self) -> bool:
        return self.state == "WAITING"

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    def withdrawals(self) -> list[End]:
        """What may end its waiting, when the time has come."""
        own = End(self.submitted + self.queue_timeout, "CANCELLED", "QueueTimeoutError")
        return [own, *self._cuts_of_parent()]

    def ends(self) -> list[End]:
        """The ways in which its body may end, now that it has started: several at a tie."""
        body = self.body
        cuts = [*self.cuts, End(self.started + self.timeout, "FAILED", "JobTimeoutError")]
        cuts += self._cuts_of_parent()
        first = min(cut.when for cut in cuts)
        cut = [cut for cut in cuts if cut.when == first]
        if body.child is not None:
            return self._ends_of_nested(first, cut)
        own = End(
            self.started + body.seconds,
            "FAILED" if body.fails else "SUCCEEDED",
            "Boom" if body.fails else None,
        )
        if not body.seconds or body.shielded:
            return [own]
        possible = [own] if own.when <= first else []
        if first <= own.when:
            possible += self._over(first, cut, first + body.cleanup)
        return possible

    def due(self) -> float:
        """When its body must have ended, or gone on, if nothing else happens."""
        if self.body.child is not None and not self.has_lent and self.child is None:
            return max([self.started + self.body.seconds, *(end.when for end in self.ends())])
        return max([end.when for end in self.ends()], default=inf)

    def _cuts_of_parent(self) -> list[End]:
        """The caller of `run` cancels the job at its own deadline."""
        if self.parent is None:
            return []
        deadline = self.parent.started + self.parent.timeout
        return [End(deadline, "CANCELLED", "JobCancelledError")]

    def _ends_of_nested(self, first: float, cut: list[End]) -> list[End]:
        child = self.child
        if child is None:
            if first > self.started + self.body.seconds:
                return []
            return self._over(first, cut, self.back if self.has_lent else first)
        if self.back == inf:
            return []
        possible = []
        had_its_say = child.state == "SUCCEEDED" or child.error == "Boom"
        if had_its_say or first >= child.settled:
            state: State = "SUCCEEDED" if child.state == "SUCCEEDED" else "FAILED"
            possible.append(End(self.back, state, child.error))
        if first <= child.settled and not had_its_say:
            possible += self._over(first, cut, self.back)
        return possible

    def _over(self, first: float, cut: list[End], when: float) -> list[End]:
        """The ends of a body that was cut and was over later."""
        possible = [end._replace(when=when) for end in cut]
        if first < self.crashed <= when:  # the one cancellation or the other has ended it
            possible.append(End(when, "CANCELLED", "JobCancelledError"))
        return possible


def within(job: ModelJob, name: str | None) -> bool:
    """Whether ``job`` is one of the lane of that name; None is all of them."""
    return name in (None, job.lane) or (
        job.session is not None and name == f"session:{job.session}"
    )
