"""Which waits of asyncio tasks are waits of jobs.

Theory of operation
-------------------
In Trio a job ends after all tasks inside of it, so the wait of each such task is a wait of the job.
A task of asyncio may outlive the body that started it. So its wait is one of a job only if the
body's own task waits for it: itself, or through what it awaits. Asyncio knows only who is told of
the end of a task, by callbacks. `AsyncioKin.job_for` follows them, from the task that waits to the
task of a body: through a task that awaits it, `gather`, `wait`, `shield` and `wait_for`, and groups
of tasks, whose block does not end before their tasks, in asyncio and in anyio.

A wait of no job is *stray*: it is no part of the search for deadlocks, and gets no error. It is
looked at again in the next turn of the loop, since an eager task runs before its parent awaits it;
when another wait inside of the same job begins or ends; when limits change; and when the log tells
of a long wait, since the body may have begun to wait for the task, of which nothing tells. A wait
that counts is looked at before an error is given, and with all others.

Alternatives: by the context alone, a task that is started and forgotten gets a `LaneDeadlockError`
for a wait that ends with the body. From the body down to what it awaits, a group of tasks cannot be
followed: its block awaits a future that does not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .._config.errors import LaneDeadlockError
from .._waiting.current import JobsByTask, jobs_by_task
from .._waiting.waits import TaskWaits, waits_of

if TYPE_CHECKING:
    from .._actors.job import AnyJob
    from .._actors.wait import Wait

Future = asyncio.Future[Any]


def kin_here() -> AsyncioKin:
    """Return what knows the tasks of this guest run."""
    table = jobs_by_task()
    if table.kin is None:
        table.kin = AsyncioKin(table, asyncio.get_running_loop())
    assert isinstance(table.kin, AsyncioKin)
    return table.kin


@final
class AsyncioKin:
    """The tasks of one guest run, and the stray waits."""

    def __init__(self, table: JobsByTask, loop: asyncio.AbstractEventLoop) -> None:
        self._table: Final = table
        self._loop: Final = loop
        # {task of asyncio's: the job whose body it is}
        self.bodies: Final[dict[object, AnyJob]] = {}
        # {task of asyncio's: the task of Trio's that waits for it}
        self.awaited_in_trio: Final[dict[object, trio.lowlevel.Task]] = {}
        # {task of Trio's: the task of asyncio's that waits for it}
        self._callers: Final[dict[trio.lowlevel.Task, Future | None]] = {}
        # {job: the tasks of Trio's that stand for tasks of asyncio's inside of it}
        self._inside: Final[dict[AnyJob, dict[trio.lowlevel.Task, None]]] = {}
        # {stray wait: the job that its task is inside of, and the lanes that were asked}
        self._stray: Final[dict[Wait, tuple[AnyJob, TaskWaits]]] = {}
        self._stray_inside: Final[dict[AnyJob, dict[Wait, None]]] = {}
        self._to_look: Final[dict[AnyJob, None]] = {}  # in the next turn of the loop

    # ---- tasks of Trio's that stand for tasks of asyncio's

    def enter(self, task: trio.lowlevel.Task, caller: Future | None, job: AnyJob) -> None:
        """``caller``, inside of ``job``, waits for ``task`` of Trio's, which stands for it."""
        self._table[task] = job
        self._callers[task] = caller
        self._inside.setdefault(job, {})[task] = None

    def leave(self, task: trio.lowlevel.Task) -> None:
        """``task`` of Trio's ends."""
        self._callers.pop(task, None)
        job = self._table.pop(task, None)
        if job is not None:  # else it has ended before
            del self._inside[job][task]
            if not self._inside[job]:
                del self._inside[job]

    def body_ended(self, task: Future, job: AnyJob) -> None:
        """The body of ``job`` has ended: tasks that outlive it wait for themselves."""
        del self.bodies[task]
        for wait in self._stray_inside.pop(job, ()):
            del self._stray[wait]
        for wait in [*(job._waits or {}).values()]:
            waits_of(job).uncount(wait)
            wait.job = None
        for task_of_trio in self._inside.pop(job, ()):
            del self._table[task_of_trio]  # which would keep the job alive

    # ---- whose wait it is

    def job_for(self, task: trio.lowlevel.Task, inside: AnyJob) -> AnyJob | None:
        """Return the job that waits for ``task``: ``inside``, if it does; else another, if any."""
        found: AnyJob | None = None
        line: list[Any] = [task]
        seen: set[Any] = set()
        for waiting in line:
            followed: list[Any]
            if isinstance(waiting, trio.lowlevel.Task):
                job, caller = self._above(waiting)
                followed = [caller]
            else:
                job = self.bodies.get(waiting)
                followed = [self.awaited_in_trio.get(waiting), *_who_wait_for(waiting)]
            if job is inside:
                return job
            found = found or job
            line += [one for one in followed if one is not None and one not in seen]
            seen.update(followed)
        return found

    def _above(self, task: trio.lowlevel.Task | None) -> tuple[AnyJob | None, Future | None]:
        """Return the job of ``task`` of Trio's, or the task of asyncio's that waits for it."""
        while task is not None:  # pragma: no branch - each such task is inside of a job
            if task in self._callers:
                return None, self._callers[task]
            if task in self._table:
                return self._table[task], None
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return None, None  # pragma: no cover - see above

    # ---- stray waits

    def began(self, wait: Wait, waits: TaskWaits) -> None:
        """``wait``, of a task inside of a job, begins: find whose it is."""
        inside = wait.job
        assert inside is not None
        wait.job = self.job_for(wait.task, inside)
        if wait.job is None:
            self._note_stray(wait, inside, waits)

    def ended(self, wait: Wait) -> None:
        """``wait``, which may be stray, ends."""
        if wait in self._stray:
            inside, _ = self._stray.pop(wait)
            del self._stray_inside[inside][wait]
            if self._stray_inside[inside]:
                self.look_soon(inside)  # another wait inside of the job has changed
            else:
                del self._stray_inside[inside]

    def changed(self, job: AnyJob) -> None:
        """A wait of ``job`` has begun or ended."""
        if job in self._stray_inside:
            self.look_soon(job)

    def look_soon(self, job: AnyJob) -> None:
        """Look at the stray waits inside of ``job`` in the next turn of the loop."""
        if not self._to_look:
            self._loop.call_soon(self._look, context=Context())
        self._to_look[job] = None

    def _look(self) -> None:
        jobs = [*self._to_look]
        self._to_look.clear()
        for job in jobs:
            self._look_at(job)
        for watches in dict.fromkeys(self._table.watches.values()):
            watches.refuse_deadlocks()

    def look_at_all(self) -> None:
        """Limits have changed: look at all waits."""
        self.verify()
        for job in [*self._stray_inside]:
            self._look_at(job)

    def _look_at(self, job: AnyJob) -> None:
        """Count the stray waits inside of ``job`` that are waits of jobs by now."""
        for wait in [*self._stray_inside.get(job, ())]:
            found = None if self._is_alone(wait) else self.job_for(wait.task, job)
            if found is not None and wait in self._stray:  # the error of another may have ended it
                _, waits = self._stray[wait]
                self.ended(wait)
                wait.job = found
                try:
                    waits.count(wait)
                except LaneDeadlockError as error:
                    waits.fail(wait, error)

    def _is_alone(self, wait: Wait) -> bool:
        """Whether nothing is told of the end of its task: of many stray waits, those of most."""
        caller: Any = self._callers.get(wait.task)
        told = getattr(caller, "_callbacks", True)
        return caller is not None and not told and caller not in self.awaited_in_trio

    def verify(self) -> bool:
        """Look at the waits that count; return whether some have become stray."""
        strayed = False
        for wait in [*self._table.waits]:
            job = wait.job
            assert job is not None
            if self.job_for(wait.task, job) is not job:
                waits = waits_of(job)
                waits.uncount(wait)
                wait.job = None
                self._note_stray(wait, job, waits)
                strayed = True
        return strayed

    def _note_stray(self, wait: Wait, inside: AnyJob, waits: TaskWaits) -> None:
        self._stray[wait] = inside, waits
        self._stray_inside.setdefault(inside, {})[wait] = None
        self.look_soon(inside)


# ---- who is told of the end of a future


def _who_wait_for(future: Future) -> Iterator[Future]:
    """Iterate over the futures that come when ``future`` has come, and tasks that await it."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Task):
            if getattr(owner, "_fut_waiter", None) is future:
                yield owner
        elif isinstance(owner, asyncio.TaskGroup):
            yield from _futures(getattr(owner, "_parent_task", None))
        elif getattr(callback, "func", None) is _RELEASE:  # pragma: no cover - Python 3.11
            yield from _futures(*callback.args)
        else:
            find: Any = _FOLLOWED.get(getattr(callback, "__qualname__", ""))
            if find is not None:
                with suppress(AttributeError, KeyError):  # of another version
                    yield from _futures(find(_variables(callback)))


def _variables(callback: Any) -> dict[str, Any]:
    names, cells = callback.__code__.co_freevars, callback.__closure__
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _futures(*found: object) -> Iterator[Future]:
    return (one for one in found if isinstance(one, asyncio.Future))


def _waiter_of_all(variables: dict[str, Any]) -> object:
    """Of `asyncio.wait`. The first of several may be another than the one that is looked at."""
    several = variables["return_when"] == asyncio.FIRST_COMPLETED and variables["counter"] > 1
    return None if several else variables["waiter"]


_RELEASE: Final[object] = getattr(asyncio.tasks, "_release_waiter", Ellipsis)
"""In a `partial`, the callback of `asyncio.wait_for` of Python 3.11."""

_FOLLOWED: Final = {
    "gather.<locals>._done_callback": lambda variables: variables["outer"],
    "shield.<locals>._inner_done_callback": lambda variables: variables["outer"],
    "_wait.<locals>._on_completion": _waiter_of_all,
    # of anyio
    "TaskGroup._spawn.<locals>.task_done": lambda variables: (
        variables["self"].cancel_scope._host_task
    ),
}
"""{name of a callback: gives the future that it sets, or the task that waits, by its variables}"""
