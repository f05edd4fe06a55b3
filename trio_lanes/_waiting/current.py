"""The job to which a task belongs.

A context variable could not answer this: contexts are copied to tasks and threads that live outside
of the job. The nursery tree answers it: a task belongs to the job whose body it runs, or else to
the job of the nearest task above it that runs a body.

A body may run outside of Trio, in the same thread, in an event loop of which Trio is the guest. No
nursery tree answers there, so the context does: `enter_job` names the job in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, final
from weakref import ref

import trio
from trio.lowlevel import RunVar, Task

if TYPE_CHECKING:
    from .._actors.job import AnyJob
    from .._actors.wait import Wait
    from .watch import Watch, Watches


class Kin(Protocol):
    """Which job waits for a task that is inside of a job, where tasks may outlive the bodies that
    start them. In Trio they do not: each wait inside a job is one of that job."""

    def job_for(self, task: Task, inside: AnyJob) -> AnyJob | None:
        """Return the job that waits for ``task``: ``inside``, if it does; else another, if any."""

    def began(self, wait: Wait, waits: Any) -> None:
        """``wait`` begins: set its job to the one that waits for its task, or to None."""

    def ended(self, wait: Wait) -> None:
        """``wait``, which is one of no job, ends."""

    def changed(self, job: AnyJob) -> None:
        """A wait of ``job`` has begun or ended."""

    def look_soon(self, job: AnyJob) -> None:
        """Look soon at the waits inside of ``job`` that are none of a job."""

    def look_at_all(self) -> None:
        """Limits have changed: look at all waits."""

    def verify(self) -> bool:
        """Look at the waits of jobs; return whether some are none of their jobs any more."""


@final
class JobsByTask(dict[object, "AnyJob"]):
    """{task: the job it runs}; a body that runs outside of Trio has its job itself as the key."""

    __slots__ = ("kin", "proved", "seeking", "waits", "watches")

    def __init__(self) -> None:
        super().__init__()
        self.kin: Kin | None = None
        """Set where bodies run outside of Trio."""
        self.waits: Final[dict[Wait, None]] = {}
        """The waits inside jobs, in the order in which they began."""
        self.seeking: Final[dict[object, None]] = {}
        """The tasks inside jobs that wait for more than the end of one job: for a start, for room,
        for any of several jobs, or to be readmitted."""
        self.proved = True
        """Whether each of `waits` could end by its limits when these last changed (`deadlock`)."""
        self.watches: Final[dict[Watch, Watches]] = {}
        """{condition on lanes that a task inside a job waits for: the table that checks it}"""


_job_of_context: Final[ContextVar[Callable[[], AnyJob | None]]] = ContextVar(
    "trio_lanes: a weak reference to the job of code that runs in no Trio task",
    default=lambda: None,
)

_jobs_by_task: Final[RunVar[JobsByTask]] = RunVar("trio_lanes: the job that each task runs")


def jobs_by_task() -> JobsByTask:
    """Return the table of this Trio run, shared by all `Lanes` in it: {task: the job it runs}."""
    try:
        return _jobs_by_task.get()
    except LookupError:
        jobs = JobsByTask()
        _jobs_by_task.set(jobs)
        return jobs


def job_here(jobs: JobsByTask) -> AnyJob | None:
    """`current_job`, for a caller that has the table."""
    if not jobs:
        return None
    try:
        task = trio.lowlevel.current_task()
    except RuntimeError:  # outside of Trio; or between two tasks: a deadline has just expired
        return jobs.get(_job_of_context.get()())
    return _job_above(jobs, task)


def _job_above(jobs: JobsByTask, task: Task | None) -> AnyJob | None:
    """Return the job that ``task``, or the nearest task above it that runs a body, belongs to."""
    while task is not None:
        job = jobs.get(task)
        if job is not None:
            return job
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return None


def jobs_here(jobs: JobsByTask) -> Iterator[AnyJob]:
    """Iterate over the jobs that the current task is inside of, the innermost first.

    There are several if a job has opened lanes of its own: a task of a job in these lanes is inside
    of both jobs.
    """
    job = job_here(jobs)
    while job is not None:
        yield job
        job = _job_above(jobs, job._keeper.parent_task)


def enter_job(job: AnyJob) -> None:
    """Name ``job`` in the present context: its body runs there, outside of Trio.

    By a weak reference: the context outlives the job, in whatever has a copy of it.
    """
    _job_of_context.set(ref(job))


def current_job() -> AnyJob | None:
    """Return the job whose task this is, or is below in the nursery tree; else None.

    None also in a thread, even if a job has started it. Not a checkpoint.
    """
    if not trio.lowlevel.in_trio_run():
        return None
    return job_here(jobs_by_task())
