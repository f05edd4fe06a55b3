"""Programs that are killed: sessions that submit in order, and handlers that leave a trace.

Run as a module it is a nursery of processes: started once, with everything imported, it forks one
for every order that it reads, kills it if asked, and answers with how it ended. So a kill costs
milliseconds, and hundreds of them fit into a test. Every line that a process leaves in a file of
its folder is one write, so it is there or not, and the lines stand in the order in which things
happened, whichever process they happened in.

How a process ends does not depend on how fast the machine is: one that is to be killed stays until
it is, SIGTERM is sent when so much has begun, and it is held back until there is somebody who
hears it. A process that hangs is ended by SIGALRM.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import trio

from tests.support.programs import PATIENCE
from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableJob,
    DurableLanes,
    RetryPolicy,
    SqliteStore,
    StoreLockedError,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._sqlite import tables
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.orders import Cancel
from trio_lanes.durable.acts.runs import Checkpoint

LOCKED_OUT = 3
"""The exit code of a worker that found another at work."""


@attrs.frozen(kw_only=True)
class Order:
    """What a process is to do."""

    folder: str
    sessions: list[int]
    """Whose jobs it submits."""
    each: int
    """Jobs of a session."""
    round: int = 0
    """Of processes that live at the same time; a later one begins when these have ended."""
    works: bool = True
    """Whether it is the worker; else it only asks."""
    slow: float = 0.0
    """Seconds that a job takes."""
    failpoint: str = ""
    """Where it kills itself."""
    passes: int = 0
    """How often it comes by there before that."""
    killed_after: float | None = None
    """Seconds after which it is killed; it does not end before."""
    sigterm_at: int | None = None
    """How many runs have begun when it sends itself SIGTERM."""


def is_tried_twice(n: int) -> bool:
    """Whether a job's first attempt fails, after it has kept something for the second."""
    return n % 5 == 4


def is_cancelled(n: int) -> bool:
    """Whether the process that submits a job then cancels it."""
    return n % 11 == 7


class Failpoint:
    """Kills this process the n-th time that it comes by a point."""

    def __init__(self, order: Order) -> None:
        self._name = order.failpoint
        self._passes = order.passes

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._passes -= 1
            if self._passes < 0:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(10)


class FailingStore:
    """A store that dies at its borders, and in its transactions."""

    CALLS: ClassVar[dict[Any, str]] = {
        "join": "joined",
        "leave": "left",
        Enqueue: "accepted",
        Checkpoint: "kept",
        Cancel: "cancelled",
    }

    def __init__(self, store: SqliteStore, at: Failpoint) -> None:
        self._store = store
        self._at = at
        self._doing: list[str] = []  # what has been handed over
        commit = tables.SqliteTables.commit

        def failing_commit(this: tables.SqliteTables, now: float) -> None:
            doing = sorted(set(self._doing))
            for what in doing:
                at(f"written, {what}")
            commit(this, now)
            for what in doing:
                at(f"committed, {what}")

        tables.SqliteTables.commit = failing_commit  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name != "do" and name not in self.CALLS:
            return call

        async def failing(*args: Any) -> Any:
            what = self.CALLS.get(type(args[0]) if name == "do" else name)
            return await (call(*args) if what is None else self._between(what, call, args))

        return failing

    async def _between(self, what: str, call: Callable[..., Any], args: Any) -> Any:
        self._at(f"before {what}")
        self._doing.append(what)
        answer = await call(*args)
        self._doing.remove(what)
        self._at(f"after {what}")
        return answer

    async def step(self, number: int, finished: Any, room: int) -> Any:
        if room and finished:
            self._at("before started")
        what = "finished" if finished else "started"
        step = await self._between(what, self._store.step, (number, finished, room))
        if step.claims and finished:
            self._at("after started")
        return step


class Trace:
    """The files in which a process says what it has seen."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def note(self, file: str, *words: object) -> None:
        descriptor = os.open(Path(self._order.folder, file), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        os.close(descriptor)

    def noted(self, file: str) -> set[str]:
        path = Path(self._order.folder, file)
        return set(path.read_text().splitlines()) if path.exists() else set()


async def main(order: Order) -> None:
    at, trace = Failpoint(order), Trace(order)
    begun = itertools.count(1)

    async def work(payload: Any) -> str:
        run = current_job()
        assert run is not None
        session, n = payload
        trace.note("effects", session, n, run.fence, order.round, "begins")
        if next(begun) == order.sigterm_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if is_tried_twice(n):
            trace.note("kept", session, n, run.checkpoint_data or 0, "found")
            mark = (run.checkpoint_data or 0) + 1
            await run.checkpoint(mark)
            trace.note("kept", session, n, mark, "kept")
            if run.attempt == 1:
                raise RuntimeError("the first attempt")
        at("before effect")
        await trio.sleep(order.slow)
        trace.note("effects", session, n, run.fence, order.round, "done")
        at("after effect")
        return f"{session} {n}"

    async def talk(lanes: DurableLanes, session: str) -> None:
        known = trace.noted("accepted")
        jobs: list[tuple[int, DurableJob]] = []
        for n in range(order.each):
            if f"{session} {n}" in known and n < order.each - 1:
                continue
            job = await lanes.submit("work", [session, n], session=session, key=f"{session}/{n}")
            trace.note("accepted", session, n)
            jobs.append((n, job))
            if is_cancelled(n) and await lanes.cancel(job.id):
                trace.note("cancelled", session, n, order.round)
        for n, job in jobs:
            try:
                assert await job.wait() == f"{session} {n}"
            except JobCancelledError:
                assert is_cancelled(n)

    path = Path(order.folder, "jobs.db")
    store: Any = FailingStore(SqliteStore(path, patience=PATIENCE), at)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        async with open_durable_lanes(
            store,
            {"work": work} if order.works else {},
            {"main": 3},
            retry=RetryPolicy(backoff=(0.0, 0.0)),
            max_crashes=10_000,
            lease_ttl=3600,  # a wait for the end of one would hang
            grace=0.2,
            worker=order.works,
        ) as lanes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_on_sigterm, signals, nursery.cancel_scope)
                async with trio.open_nursery() as talking:
                    for number in order.sessions:
                        talking.start_soon(talk, lanes, f"s{number}")
                if order.sessions and order.killed_after is None:
                    nursery.cancel_scope.cancel()


async def end_on_sigterm(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


def live(order: Order) -> int:
    """All of a process's life. Returns its exit code."""
    code = 0
    try:
        trio.run(main, order)
    except* StoreLockedError:
        code = LOCKED_OUT
    except* BaseException as errors:
        Trace(order).note("errors", repr(errors.exceptions))
        code = 1
    return code


def start(order: Order) -> int:
    """Fork a process that lives as ordered; its pid."""
    pid = os.fork()
    if not pid:
        signal.alarm(PATIENCE)
        os._exit(live(order))
    return pid


def end(pid: int, killer: threading.Timer | None) -> int:
    """Wait for the end of a process; its exit code."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it is reaped, no other has its pid
    if killer is not None:
        killer.cancel()
        killer.join()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def serve() -> None:
    """Start all of an order at once. Who has nothing to submit ends last, by SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until a process can hear it
    for line in sys.stdin:
        orders = [Order(**order) for order in json.loads(line)]
        pids = [start(order) for order in orders]
        killers: list[threading.Timer | None] = []  # no threads before the last fork
        for order, pid in zip(orders, pids, strict=True):
            killer = None
            if order.killed_after is not None:
                killer = threading.Timer(order.killed_after, os.kill, [pid, signal.SIGKILL])
                killer.start()
            killers.append(killer)
        exits: dict[int, int] = {}
        for last in (False, True):
            for number, order in enumerate(orders):
                if last is bool(order.sessions):
                    continue
                if last and killers[number] is None:
                    os.kill(pids[number], signal.SIGTERM)
                exits[number] = end(pids[number], killers[number])
        print(json.dumps([exits[n] for n in range(len(orders))]), flush=True)


if __name__ == "__main__":
    serve()
