"""A test that hangs in virtual time fails, with the stacks of its tasks, and costs no worker.

There are three ways to hang. All tasks wait for what never comes, or something runs for ever at one
moment of virtual time, or all wait but a task that ticks for ever.

*All wait.* With ``autojump_clock`` Trio's loop then spins: nothing has a deadline to which the
clock could jump. With ``mock_clock`` it sleeps for a day. Here such a loop waits for a second at a
time, at no cost, and wakes at once if a thread or a socket has something for it. After `WAITS`
seconds of real time in which nothing came, the test's main task is cancelled. One that does not end
then, since it is shielded, ends by a crash of the run. The loop of the other door
(tests/support/doors.py) calls `stacks` where it sees the same.

*Something runs.* Each `SPINS` seconds of the processor a signal looks at the clock of the run; if
it shows the same run and time as before, the signal's handler raises.

*Something ticks.* A test that knows its time in virtual time says it: `within`.

Whatever the test makes of that, it fails by what was found. The text has the arguments of our
functions, so that the example of a property test is told as well. A later hang of one test, as
where Hypothesis plays it again, is found in a tenth of the time.
"""

from __future__ import annotations

import asyncio
import gc
import linecache
import math
import reprlib
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, process_time
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import pytest
import pytest_trio
import trio
from trio._core._run import GLOBAL_RUN_CONTEXT, Runner
from trio.testing import MockClock

WAITS = 20.0  # seconds
SPINS = 10.0  # seconds of the processor; it is found the second time
SLICE: Final = 1.0
HERE: Final = Path(__file__)
ROOT = str(HERE.parents[2])  # of the files whose frames are told with their arguments
OF_TRIO: Final = (str(Path(trio.__file__).parent), str(Path(pytest_trio.__file__).parent))
MOST_TASKS: Final = 100

found: list[str] = []
"""What was found in the test that runs."""


class Hang(BaseException):
    """It is no `Exception`: neither a body nor Hypothesis is to take it for a result."""


# ---- what is told

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 400
_short.maxlevel = 8
_short.maxlist = _short.maxtuple = _short.maxdict = 40


def _is_ours(file: str) -> bool:
    return file.startswith(ROOT) and "site-packages" not in file


def _arguments(frame: FrameType) -> str:
    code: CodeType = frame.f_code
    if not _is_ours(code.co_filename):
        return ""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    told = (f"{name}={_short.repr(frame.f_locals.get(name))}" for name in names if name != "self")
    return f"({', '.join(told)})"


def _lines(frames: Iterable[tuple[FrameType, int]], indent: str) -> Iterator[str]:
    for frame, line in frames:
        code = frame.f_code
        if code.co_filename.startswith(OF_TRIO):
            continue
        yield f"{indent}{code.co_filename}:{line} {code.co_name}{_arguments(frame)}"
        yield f"{indent}    {linecache.getline(code.co_filename, line).strip()}"


def _frames_of(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    while coroutine is not None:
        for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno
                coroutine = getattr(coroutine, inner)
                break
        else:
            return


def _called_by(frame: FrameType | None) -> Iterator[str]:
    """Tell which of our functions have called ``frame``, outermost first."""
    inside = []
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_ours(name) and name != str(HERE):
            inside.append((frame, frame.f_lineno))
        frame = frame.f_back
    yield from _lines(reversed(inside), "  ")


def _tasks(task: trio.lowlevel.Task, indent: str = "  ") -> Iterator[str]:
    yield f"{indent}task {task.name}"
    yield from _lines(task.iter_await_frames(), indent + "  ")
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tasks(child, indent + "  ")


_crashed: Final[WeakSet[Runner]] = WeakSet()


def stacks(why: str, frame: FrameType | None = None) -> str:
    """Note that the test that runs hangs, and return the text: the stacks of its tasks."""
    told = [why, "called by:", *_called_by(frame or sys._getframe(1))]
    for thing in gc.get_objects():
        if isinstance(thing, Runner) and thing.tasks and thing.init_task and thing not in _crashed:
            told += ["tasks of Trio:", *_tasks(thing.init_task)]
            _crashed.add(thing)  # it may have: then its tasks are there for a while
        elif isinstance(thing, asyncio.AbstractEventLoop) and not thing.is_closed():
            tasks = sorted(asyncio.all_tasks(thing), key=lambda task: task.get_name())
            told += ["tasks of asyncio:"] if tasks else []
            for task in tasks[:MOST_TASKS]:
                told += [f"  task {task.get_name()}", *_lines(_frames_of(task.get_coro()), "    ")]
    text = "\n".join(told)
    found.append(text)
    return text


# ---- all wait


class _Idle:
    def __init__(self, now: float) -> None:
        self.since = now
        self.asked = now
        self.slice = 0.0  # of which so many seconds were waited for
        self.worked = process_time()


_idle: Final[WeakKeyDictionary[MockClock, _Idle]] = WeakKeyDictionary()
_seconds_to = MockClock.deadline_to_sleep_time


def patience() -> float:
    """Return for how long a loop may wait in which no time passes."""
    return WAITS / 10 if found else WAITS


def _deadline_to_sleep_time(self: MockClock, deadline: float) -> float:
    """Trio's loop asks this before each wait for input and output, where no task is ready."""
    seconds = _seconds_to(self, deadline)
    runner = GLOBAL_RUN_CONTEXT.runner
    stands = self.rate == 0 and (deadline == math.inf or self.autojump_threshold == math.inf)
    if not stands or not seconds or runner.is_guest:
        if _idle.pop(self, None) is not None:
            self._try_resync_autojump_threshold()
        return seconds
    now = monotonic()
    idle = _idle.setdefault(self, _Idle(now))
    worked, idle.worked = process_time() - idle.worked, process_time()
    # something came, or tasks have worked since
    if now - idle.asked < 0.9 * idle.slice or worked > 0.1:
        idle.since = now
    elif now - idle.since >= patience():
        idle.since = now
        _end(runner)
        return 0
    idle.asked = now
    idle.slice = min(SLICE, patience() / 2)
    runner.clock_autojump_threshold = math.inf  # there is nothing to jump to: wait, do not spin
    return idle.slice


def _end(runner: Runner) -> None:
    main = runner.main_task
    nursery = None if main is None else main.parent_nursery
    text = stacks("all tasks wait for ever")
    if nursery is None or nursery.cancel_scope.cancel_called:
        raise Hang(text)
    nursery.cancel_scope.cancel()


# ---- something runs

_seen: list[tuple[object, float] | None] = [None]
_tries: Final = [0]


def _moment() -> tuple[object, float] | None:
    """Return the run that is on in this thread, if its time is virtual, and the time."""
    runner = getattr(GLOBAL_RUN_CONTEXT, "runner", None)
    if runner is not None and isinstance(runner.clock, MockClock):
        return (runner, runner.clock.current_time()) if runner.clock.rate == 0 else None
    loop: Any = asyncio._get_running_loop()
    now = getattr(loop, "now", None)  # of a `VirtualLoop`
    return None if now is None else (loop, now)


def _look(signum: int, frame: FrameType | None) -> None:
    moment = _moment()
    if moment is None or moment != _seen[0]:
        _seen[0] = moment
        return
    if frame is not None and frame.f_code.co_filename.startswith(OF_TRIO) and _tries[0]:
        _tries[0] -= 1  # an error there would be one of Trio: look again in a moment
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.002, SPINS / 10)
        return
    text = stacks(f"something runs for ever at {moment[1]} s", frame)
    signal.setitimer(signal.ITIMER_VIRTUAL, SPINS / 10, SPINS / 10)
    raise Hang(text)


# ---- something ticks


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Fail if the block takes longer in virtual time: what ticks meanwhile hides that it hangs."""

    async def watch() -> None:
        await trio.sleep(seconds)
        raise Hang(stacks(f"it has not ended after {seconds:g} s"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


# ---- pytest


def pytest_configure() -> None:
    MockClock.deadline_to_sleep_time = _deadline_to_sleep_time  # type: ignore[method-assign]
    signal.signal(signal.SIGVTALRM, _look)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    found.clear()
    _seen[0], _tries[0] = None, 500
    # Coverage is measured by a tracer, which makes all of it dearer.
    often = SPINS * (6 if item.get_closest_marker("slow") else 1) * (4 if sys.gettrace() else 1)
    signal.setitimer(signal.ITIMER_VIRTUAL, often, often)
    result, error = None, None
    try:
        result = yield
    except BaseException as raised:
        error = raised
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _seen[0] = None
    if found:  # what was raised since then is what the hang became
        raise pytest.fail.Exception(found[0], pytrace=False)
    if error is not None:
        raise error
    return result
