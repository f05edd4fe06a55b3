"""What each step of a job's way costs: its own time and calls, without those of the steps inside.

python -m benchmarks.steps             # half a minute
python -m benchmarks.steps --rounds 9

A step is one function of the library, which is timed from outside while a burst runs; so is the
garbage collector, which comes at any time. What the timing itself takes is measured first, and
taken off; some is left, so that the sum is more than what is not timed. This says where the
time goes. How much it is beside others says `python -m benchmarks`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs
import trio

from benchmarks import machine
from trio_lanes import _submission, open_lanes
from trio_lanes._actors.lane import LaneActor
from trio_lanes._actors.session import SessionActor
from trio_lanes._flow.loop import Scheduler
from trio_lanes.agents import Inbox
from trio_lanes.durable import MemoryStore, open_durable_lanes

Body = Callable[[int], Awaitable[int]]

clock: Final = time.thread_time  # others on this machine do not count

JOBS: Final = 20_000
SESSIONS: Final = 2_000
LANE: Final = 100

REST: Final = "run"
COLLECTOR: Final = "collector"
STEPS: Final[tuple[tuple[str, Any, str, str], ...]] = (
    (
        "check",
        _submission.Submitter,
        "_make",
        "The options are checked, so bad input is an error of this call; the job is made, with its "
        "cancel scope and a copy of the caller's context.",
    ),
    (
        "submit",
        Scheduler,
        "submit",
        "The job takes its number and its place in line, before any other task runs.",
    ),
    (
        "serve",
        Scheduler,
        "serve",
        "The loop asks each touched actor: sessions, then lanes, so a lane knows all jobs that it "
        "may start before it starts one.",
    ),
    (
        "ask session",
        SessionActor,
        "next_forward",
        "The session takes its mail and gives its best job, if its window has a place.",
    ),
    (
        "forward",
        Scheduler,
        "_forward",
        "The job goes into the mailbox of its lane, which is a memory channel.",
    ),
    (
        "ask lane",
        LaneActor,
        "next_start",
        "The lane gives the head of its line, if a slot is free.",
    ),
    (
        "start",
        Scheduler,
        "_start",
        "The job becomes a borrower of the lane's limiter and is RUNNING; a worker is to take it.",
    ),
    (
        REST,
        None,
        "",
        "A worker enters the context of the job and calls its body; Trio's own work is in here.",
    ),
    (
        "settle",
        Scheduler,
        "_finish_running",
        "The token goes back, the outcome is kept, what the job referred to is dropped, and its "
        "waiters are woken.",
    ),
    (COLLECTOR, None, "", "Python's garbage collector, at whatever time it runs."),
)


async def no_op(value: int) -> int:
    return value


async def one_checkpoint(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


@attrs.define
class Account:
    """Own time and calls, by step."""

    seconds: dict[str, float] = attrs.field(factory=lambda: defaultdict(float))
    entered: Counter[str] = attrs.field(factory=Counter)  # how often
    inside: Counter[str] = attrs.field(factory=Counter)  # how often others were entered from it
    calls: Counter[str] = attrs.field(factory=Counter)  # of Python functions
    _stack: list[str] = attrs.field(factory=lambda: [REST])
    _nested: float = 0.0  # time of steps inside the present one
    _begun: list[tuple[float, float]] = attrs.field(factory=list)

    def timed(self, step: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn``, on account of ``step``."""

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(step)
            try:
                return fn(*args, **kwargs)
            finally:
                self.leave()

        return call

    def enter(self, step: str) -> None:
        self.inside[self._stack[-1]] += 1
        self._stack.append(step)
        nested, self._nested = self._nested, 0.0
        self._begun.append((clock(), nested))

    def leave(self) -> None:
        begun, nested = self._begun.pop()
        took = clock() - begun
        step = self._stack.pop()
        self.seconds[step] += took - self._nested
        self.entered[step] += 1
        self._nested = nested + took

    def collect(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the garbage collector."""
        if phase == "start":
            self.enter(COLLECTOR)
        else:
            self.leave()

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        """Called by the interpreter."""
        if event == "call" and frame.f_code.co_filename != __file__:
            self.calls[self._stack[-1]] += 1


@contextmanager
def attached(account: Account) -> Iterator[None]:
    """Every step of every job on ``account``."""
    gc.collect()
    before = [(owner, name, getattr(owner, name)) for _, owner, name, _ in STEPS if owner]
    for step, owner, name, _ in STEPS:
        if owner:
            setattr(owner, name, account.timed(step, getattr(owner, name)))
    gc.callbacks.append(account.collect)
    try:
        yield
    finally:
        gc.callbacks.remove(account.collect)
        for owner, name, fn in before:
            setattr(owner, name, fn)


async def burst(body: Body) -> float:
    """Run JOBS jobs, submitted at once, and keep their handles. Returns seconds."""
    begun = clock()
    async with open_lanes({"main": LANE}) as lanes:
        jobs = [
            lanes.submit_nowait(body, n, session=f"session {n % SESSIONS}") for n in range(JOBS)
        ]
    took = clock() - begun
    assert all(job.done for job in jobs)
    return took


async def bare(body: Body) -> float:
    """The same number of tasks in a nursery, without order, limit or handles."""

    async def keep(n: int) -> None:
        results[n] = await body(n)

    results = [-1] * JOBS
    begun = clock()
    async with trio.open_nursery() as nursery:
        for n in range(JOBS):
            nursery.start_soon(keep, n)
    took = clock() - begun
    assert results == list(range(JOBS))
    return took


def price_of_timing() -> tuple[float, float]:
    """What timing adds to a step, and to the one that it is entered from, in seconds."""

    def nothing() -> None:
        pass

    def outer(fn: Callable[[], None]) -> None:
        for _ in range(n):
            fn()

    n = 100_000
    begun = clock()
    outer(nothing)
    plain = (clock() - begun) / n
    account = Account()
    account.timed("outer", outer)(account.timed("inner", nothing))
    return account.seconds["inner"] / n, account.seconds["outer"] / n - plain


def profile(body: Body) -> dict[str, float]:
    """Microseconds a job, by step."""
    own, entering = price_of_timing()
    account = Account()
    with attached(account):
        account.seconds[REST] = trio.run(burst, body) - account._nested
    return {
        step: 1e6
        / JOBS
        * (account.seconds[step] - own * account.entered[step] - entering * account.inside[step])
        for step, *_ in STEPS
    }


def calls(body: Body) -> dict[str, float]:
    """Calls of Python functions a job, by step, Trio's included."""
    account = Account()
    with attached(account):
        sys.setprofile(account.count)
        try:
            trio.run(burst, body)
        finally:
            sys.setprofile(None)
    return {step: account.calls[step] / JOBS for step, *_ in STEPS}


def plain(body: Body) -> tuple[float, float]:
    """Microseconds a job that is not timed; and of a bare nursery, right after."""
    gc.collect()
    ours = trio.run(burst, body)
    gc.collect()
    return ours / JOBS * 1e6, trio.run(bare, body) / JOBS * 1e6


def table(rounds: int) -> str:
    """The machine, and the steps, as Markdown."""
    columns, ends = [], []
    for body in (no_op, one_checkpoint):
        profiles = [profile(body) for _ in range(rounds)]
        columns.append(
            {step: statistics.median(one[step] for one in profiles) for step, *_ in STEPS}
        )
        columns.append(calls(body))
        pairs = [plain(body) for _ in range(rounds)]
        ends.append([statistics.median(one) for one in zip(*pairs, strict=True)])
    lines = [
        "| step | what it does, and why | no-op, µs | calls | one checkpoint, µs | calls |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for step, _, _, what in STEPS:
        figures = " | ".join(f"{one[step]:.1f}" for one in columns)
        lines.append(f"| {step} | {what} | {figures} |")
    sums = " | ".join(f"{sum(one.values()):.1f}" for one in columns)
    lines.append(f"| | sum | {sums} |")
    for at, what in enumerate(("the same, not looked into", "bare `start_soon`")):
        lines.append(f"| | {what} | {ends[0][at]:.1f} | | {ends[1][at]:.1f} | |")
    described = machine.describe()
    head = [f"- {key}: {described[key]}" for key in ("cpu", "cores", "system", "python", "commit")]
    return "\n".join([*head, f"- rounds: {rounds}", "", *lines]) + "\n"


async def walk(what: str, once: Callable[[], Awaitable[object]]) -> str:
    """The calls of the library in one round of ``once``; in how many modules, how often changed."""
    modules: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "/trio_lanes/" in frame.f_code.co_filename:
            modules.append(frame.f_code.co_filename)

    await once()
    await trio.sleep(0.3)  # the step that ends the first is over
    sys.setprofile(count)
    await once()
    sys.setprofile(None)
    changes = sum(one != other for one, other in pairwise(modules))
    return f"{what}: {len(modules)} calls, {len(set(modules))} modules, {changes} changes of module"


async def walks() -> None:
    """Print the walks of a job, of a message to an inbox, and of a durable job over memory."""

    async def returns(given: object) -> object:
        return given

    async with open_lanes() as lanes:
        print(await walk("a job", lambda: lanes.submit_nowait(returns, 1, session="alice").wait()))
        inbox = Inbox(lanes, "alice", returns)
        print(await walk("a message to an inbox", lambda: inbox.post("hello").settled()))
    async with open_durable_lanes(MemoryStore(), {"returns": returns}) as durable:

        async def durable_job() -> None:
            await (await durable.submit("returns", {"a": 1}, session="alice")).wait()

        print(await walk("a durable job over memory", durable_job))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write it there, too: docs/design-costs.md")
    options = parser.parse_args()
    logging.getLogger("trio_lanes").setLevel(logging.ERROR)  # that a burst waits long is known
    text = table(options.rounds)
    print(text, end="")
    trio.run(walks)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
