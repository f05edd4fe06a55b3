"""Which job a task belongs to.

A context variable could not tell: contexts are copied to tasks and threads that live outside
the job. The nursery tree does: a task belongs to the job whose body it runs, or to that of the
nearest task above it that runs one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

import trio
from trio.lowlevel import RunVar, Task

if TYPE_CHECKING:
    from .._actors.job import AnyJob
    from .._actors.wait import Wait
    from .watch import Watch, Watches


@final
class JobsByTask(dict[Task, "AnyJob"]):
    """{task: the job it runs}."""

    __slots__ = ("waits", "watches")

    def __init__(self) -> None:
        super().__init__()
        self.waits: Final[dict[Wait, None]] = {}
        """The waits inside jobs, in the order in which they began."""
        self.watches: Final[dict[Watch, Watches]] = {}
        """{condition on lanes that is waited for inside a job: where it is looked at}"""


_jobs_by_task: Final[RunVar[JobsByTask]] = RunVar("trio_lanes: the job that each task runs")


def jobs_by_task() -> JobsByTask:
    """The one table of this Trio run, shared by all `Lanes` in it: {task: the job it runs}."""
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
        task: Task | None = trio.lowlevel.current_task()
    except RuntimeError:  # between two tasks: a deadline has just expired
        return None
    while task is not None:
        job = jobs.get(task)
        if job is not None:
            return job
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return None


def jobs_here(jobs: JobsByTask) -> Iterator[AnyJob]:
    """The jobs that the current task is inside of, the innermost first.

    There are several where a job opens lanes of its own: a task of a job of these is inside both.
    """
    if job_here(jobs) is None:
        return
    task: Task | None = trio.lowlevel.current_task()
    while task is not None:
        job = jobs.get(task)
        if job is not None:
            yield job
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task


def current_job() -> AnyJob | None:
    """The job whose task this is, or is below in the nursery tree; else None.

    None also in a thread, be it one that a job has started. Not a checkpoint.
    """
    if not trio.lowlevel.in_trio_task():
        return None
    return job_here(jobs_by_task())
