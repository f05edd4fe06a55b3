"""The records of waiting: the waiters of a job, the waits of tasks, the requests for room.

They only hold data. `trio_lanes._waiting` and the loop act on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, final

import attrs
import outcome
from trio.lowlevel import Task

if TYPE_CHECKING:
    from .job import AnyJob


class Waiter(Protocol):
    """An object that a job tells of its end or, if that is enough, of its start."""

    @property
    def until_started(self) -> bool:
        """Whether the start of the job is enough."""

    @property
    def wait(self) -> Wait | None:
        """The wait of a task that it stands for now, if any."""

    def job_ended(self, target: AnyJob) -> None:
        """``target`` has started or settled. Called once, between two acts. Never raises."""


class KeptWaits(Protocol):
    """The waits for the jobs of some lanes, as far as a job knows them."""

    def end(self, wait: Wait) -> None: ...
    def add_waiter(self, target: AnyJob, waiter: Waiter) -> None: ...


@final
@attrs.define(eq=False)  # not frozen: that would cost as much as the rest of the wait
class Wait:
    """A task that waits: for ``target``, or for any job of ``any_of``, or for room."""

    task: Task
    job: AnyJob | None
    """The job inside which the task waits."""
    target: AnyJob | None = None
    """The job that it waits for."""
    any_of: Collection[AnyJob] = ()
    """The jobs of which it waits for any. They notify another waiter, not this record."""
    request: RoomRequest | None = None
    """The request for room that it waits for."""
    runs: bool = False
    """Whether the task then waits for the end of the job that it submits."""
    until_started: bool = False
    """Whether the start of ``target`` is enough."""
    failed: Callable[[], None] = lambda: None
    """Called when the wait ends in an error instead."""

    @property
    def wait(self) -> Wait:
        """As a `Waiter`."""
        return self

    def job_ended(self, target: AnyJob) -> None:
        """As a `Waiter`: wake the task."""
        target._keeper.waits.end(self)


@final
@attrs.define(eq=False)
class RoomRequest:
    """A submission that waits for room."""

    job: AnyJob
    """The job that is accepted when there is room. Until then the lanes do not know it."""
    inside: bool
    """Whether it comes from inside a running job of these lanes: it may while they close."""
    session: Any
    """The `SessionActor` that the job is to go through, or None; Any, as in `Job`."""
    on_decision: Callable[[outcome.Maybe[AnyJob]], None] | None
    """Gives the submitter the job that was accepted, or the error. Never raises. None when the
    submitter has it, or does not want it: a cycle with it would keep the job alive."""
    actor: Any = attrs.field(init=False)
    """The `Actor` in whose line for room it stands."""
    order: int = attrs.field(init=False)
    """Its place in that line."""

    @property
    def is_over(self) -> bool:
        """Whether it has left its line: its submitter is notified, or will be when the act ends."""
        return self.job not in (self.actor.room_line or ())
