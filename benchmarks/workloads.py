"""The work itself: what is submitted, when the clock runs, and what is checked afterwards.

Each function here is one workload, the same for every Python contender on either event loop;
the contenders only say how *they* take a job. Four small protocols are all that they implement,
each by the peers that can. ``node/bench.mjs`` does the same workloads for Node.
"""

from __future__ import annotations

import gc
import random
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs

from benchmarks.checks import WrongResult, verify
from benchmarks.sample import Sample

Body = Callable[[int], Coroutine[Any, Any, int]]
Submit = Callable[[Body, int, str], Awaitable[object] | None]

JOBS_PER_SESSION = 10
OUTSTANDING = 1_000
OUT = Path(__file__).parent / "out"


@attrs.frozen
class Loop:
    """An event loop: how to run a main function, and how a task lets others run once."""

    run: Callable[[Callable[[], Coroutine[Any, Any, Sample]]], Sample]
    checkpoint: Callable[[], Coroutine[Any, Any, None]]


class Sessions(Protocol):
    """Ordered work per session, bounded work over all of them."""

    keeps: frozenset[str]

    def open(self, n: int, *, keep: bool) -> AbstractAsyncContextManager[Submit]:
        """A way to submit; leaving the block waits for all jobs. `keep`: results are wanted."""

    async def results(self) -> Sequence[object]:
        """What the jobs returned, by number. Asked after leaving the block."""


class Caller(Protocol):
    """One job at a time, and its value."""

    def open(self) -> AbstractAsyncContextManager[Callable[[Body, int], Awaitable[object]]]: ...


class Line(Protocol):
    """Jobs with priorities, one at a time, of which none starts before `start`."""

    def open(self, n: int) -> AbstractAsyncContextManager[Callable[[Body, int, int], None]]: ...

    def start(self) -> None: ...

    async def results(self) -> Sequence[object]: ...


class Waiters(Protocol):
    """Jobs that wait behind a closed gate, and are cancelled there."""

    def open(self, n: int) -> AbstractAsyncContextManager[Submit]: ...

    def clear(self) -> None: ...

    def cancel(self, i: int) -> None: ...

    async def ended(self) -> None:
        """Until every job has been told."""

    async def cancelled(self) -> int:
        """How many jobs ended as a cancelled one does. Asked after leaving the block."""


class Watched(Waiters, Protocol):
    """Waiting jobs that a page shows."""

    async def frames(self, count: int) -> list[float]:
        """Look at so many frames; return for how many seconds each held the loop."""


FRAMES = 20

Drive = Callable[[int], Awaitable[list[object]]]


class Cycles(Protocol):
    """Jobs that are accepted on a disk, run, and told about, one behind the other."""

    keeps: frozenset[str]

    def open(
        self, folder: Path, log: list[int], in_flight: int
    ) -> AbstractAsyncContextManager[Drive]:
        """A way to have jobs 0 to n done, of which so many are under way at a time.

        The submitter of job i waits for its result, and then submits job ``i + in_flight``. The
        job appends its number to the log, and returns it.
        """


class Clock:
    """The measured part: ``with Clock() as clock``. What was before is collected first."""

    def __enter__(self) -> Clock:
        gc.collect()
        self._cpu = time.process_time()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.cpu = time.process_time() - self._cpu

    def sample(self, jobs: int, verified: Sequence[str], **figures: float) -> Sample:
        per_job = self.seconds / jobs * 1e6
        return Sample(per_job, self.seconds, self.cpu, tuple(verified), figures)


class Tally:
    """Stands in for a log where there are too many jobs to keep one entry for each."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def append(self, i: int) -> None:
        self.count += 1
        self.total += i

    def __len__(self) -> int:
        return self.count


def no_op(log: list[int] | Tally) -> Body:
    append = log.append

    async def job(i: int) -> int:
        append(i)
        return i

    return job


def with_checkpoint(log: list[int], checkpoint: Callable[[], Coroutine[Any, Any, None]]) -> Body:
    append = log.append

    async def job(i: int) -> int:
        append(i)
        await checkpoint()
        append(~i)
        return i

    return job


def session_keys(n: int) -> list[str]:
    return [f"user-{number}" for number in range(max(1, n // JOBS_PER_SESSION))]


async def submit_all(submit: Submit, body: Body, n: int, keys: Sequence[str]) -> None:
    sessions = len(keys)
    for i in range(n):
        waiting = submit(body, i, keys[i % sessions])
        if waiting is not None:  # only aiojobs has no other way in than an await
            await waiting


async def top_up(
    submit: Submit, body: Body, n: int, keys: Sequence[str], log: list[int] | Tally, loop: Loop
) -> None:
    """At every pass of the scheduler, submit until `OUTSTANDING` jobs have not run yet."""
    sessions = len(keys)
    i = 0
    while i < n:
        room = min(n, len(log) + OUTSTANDING)
        while i < room:
            waiting = submit(body, i, keys[i % sessions])
            if waiting is not None:
                await waiting
            i += 1
        await loop.checkpoint()


async def burst(loop: Loop, peer: Sessions, n: int) -> Sample:
    """All jobs at once, ten a session, sessions taking turns; until the last has ended."""
    log: list[int] = []
    return await _burst(peer, n, no_op(log), log)


async def checkpoint(loop: Loop, peer: Sessions, n: int) -> Sample:
    """The burst, with a job that lets others run once."""
    log: list[int] = []
    return await _burst(peer, n, with_checkpoint(log, loop.checkpoint), log)


async def _burst(peer: Sessions, n: int, body: Body, log: list[int]) -> Sample:
    keys = session_keys(n)
    with Clock() as clock:
        async with peer.open(n, keep=True) as submit:
            await submit_all(submit, body, n, keys)
    # Reading every result is not part of the clock, but its price is told.
    with Clock() as reading:
        results = await peer.results()
    verified = verify(log, results, n=n, sessions=len(keys), keeps=peer.keeps)
    return clock.sample(n, verified, reading_us=reading.seconds / n * 1e6)


async def steady(loop: Loop, peer: Sessions, n: int) -> Sample:
    """The jobs of the burst, never more than `OUTSTANDING` of them at a time."""
    log: list[int] = []
    body = no_op(log)
    keys = session_keys(n)
    with Clock() as clock:
        async with peer.open(n, keep=True) as submit:
            await top_up(submit, body, n, keys, log, loop)
    results = await peer.results()
    verified = verify(log, results, n=n, sessions=len(keys), keeps=peer.keeps)
    return clock.sample(n, verified)


async def keys(loop: Loop, peer: Sessions, n: int) -> Sample:
    """`n` sessions come and go, a job each, `OUTSTANDING` at a time; nothing is kept of them."""
    tally = Tally()
    body = no_op(tally)
    names = [f"user-{number}" for number in range(n)]
    before = _peak_memory()
    with Clock() as clock:
        async with peer.open(n, keep=False) as submit:
            await top_up(submit, body, n, names, tally, loop)
    if (tally.count, tally.total) != (n, n * (n - 1) // 2):
        raise WrongResult(f"{tally.count} jobs ran for {n} sessions")
    return clock.sample(n, ["sum"], memory_growth_mb=(_peak_memory() - before) / 2**20)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def gap(loop: Loop, peer: Sessions, n: int) -> Sample:
    """The longest time that another task had to wait for its turn while the burst was served.

    The other task is the submitter: once everything is submitted, it checkpoints in a loop until
    all jobs have run. (Submitting is one stretch of the submitter's own code, the same for all.)
    """
    log: list[int] = []
    body = no_op(log)
    keys = session_keys(n)
    worst = 0.0
    with Clock() as clock:
        async with peer.open(n, keep=True) as submit:
            await submit_all(submit, body, n, keys)
            last = time.perf_counter()
            while len(log) < n:
                await loop.checkpoint()
                now = time.perf_counter()
                worst = max(worst, now - last)
                last = now
    verified = verify(log, await peer.results(), n=n, sessions=len(keys), keeps=peer.keeps)
    return attrs.evolve(clock.sample(n, verified), value=worst * 1e3)


async def uncontended(loop: Loop, peer: Caller, n: int) -> Sample:
    """One call after the other, each awaited for its value."""
    log: list[int] = []
    body = no_op(log)
    results: list[object] = []
    async with peer.open() as call:
        with Clock() as clock:
            for i in range(n):
                results.append(await call(body, i))
    keeps = frozenset({"order"})
    return clock.sample(n, verify(log, results, n=n, sessions=1, keeps=keeps))


async def priorities(loop: Loop, peer: Line, n: int) -> Sample:
    """Distinct priorities in random order, behind a closed gate; then all run, one by one."""
    log: list[int] = []
    body = no_op(log)
    order = list(range(n))
    random.Random(0).shuffle(order)
    with Clock() as clock:
        async with peer.open(n) as put:
            for i, priority in enumerate(order):
                put(body, i, priority)
            peer.start()
    verified = verify(log, await peer.results(), n=n, sessions=1, keeps=frozenset())
    if [order[i] for i in log] != list(range(n - 1, -1, -1)):
        raise WrongResult("jobs did not run in the order of their priorities")
    return clock.sample(n, [*verified, "priority"])


async def clear(loop: Loop, peer: Waiters, n: int) -> Sample:
    """Everything that waits is cancelled by one call, until every job has been told."""

    def cancel() -> None:
        peer.clear()

    return await _cancelled(loop, peer, n, cancel)


async def cancel(loop: Loop, peer: Waiters, n: int) -> Sample:
    """The same by one call a job, in random order."""
    order = list(range(n))
    random.Random(0).shuffle(order)

    def cancel() -> None:
        for i in order:
            peer.cancel(i)

    return await _cancelled(loop, peer, n, cancel)


async def _cancelled(loop: Loop, peer: Waiters, n: int, cancel: Callable[[], None]) -> Sample:
    log: list[int] = []
    body = no_op(log)
    keys = session_keys(n)
    async with peer.open(n) as submit:
        await submit_all(submit, body, n, keys)
        await _settle(loop)
        with Clock() as clock:
            cancel()
            await peer.ended()
    if log or await peer.cancelled() != n:
        raise WrongResult(f"{await peer.cancelled()} of {n} jobs were cancelled, {len(log)} ran")
    return clock.sample(n, ["all told", "none ran"])


async def cycles(loop: Loop, peer: Cycles, n: int, in_flight: int) -> Sample:
    """Accept, start, finish, tell: so many at a time, on a disk that is a disk."""
    log: list[int] = []
    OUT.mkdir(exist_ok=True)  # the folder for temporary files may lie in memory
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        async with peer.open(Path(folder), log, in_flight) as drive:
            await drive(0)
            with Clock() as clock:
                results = await drive(n)
    verified = verify(log, results, n=n, sessions=in_flight, keeps=peer.keeps)
    return clock.sample(n, verified, cycles_per_second=n / clock.seconds)


async def waiting(loop: Loop, peer: Waiters, n: int) -> Sample:
    """Bytes of a job that waits, ten a session, with all that the submitter needs to hold."""
    return await _waiting_bytes(loop, peer, n, session_keys(n))


async def waiting_alone(loop: Loop, peer: Waiters, n: int) -> Sample:
    """The same where every job is the only one of its session, which pays for the session too."""
    return await _waiting_bytes(loop, peer, n, [f"user-{number}" for number in range(n)])


async def _waiting_bytes(loop: Loop, peer: Waiters, n: int, keys: Sequence[str]) -> Sample:
    body = no_op([])
    numbers = list(range(n))  # the arguments exist already, in every peer
    sessions = len(keys)
    async with peer.open(n) as submit:
        before = _traced()
        for i in numbers:
            submit(body, i, keys[i % sessions])
        await _settle(loop)
        size = _traced() - before
        peer.clear()
        await peer.ended()
    if await peer.cancelled() != n:
        raise WrongResult(f"{await peer.cancelled()} of {n} jobs were there to be measured")
    return Sample(size / n, verified=("all waited",))


async def frame(loop: Loop, peer: Watched, n: int) -> Sample:
    """Milliseconds for which a frame of the monitor holds the loop while `n` jobs wait."""
    keys, body = session_keys(n), no_op([])
    async with peer.open(n) as submit:
        for i in range(n):
            submit(body, i, keys[i % len(keys)])
        await _settle(loop)
        gc.collect()
        held = sorted(await peer.frames(FRAMES))
        peer.clear()
        await peer.ended()
    if await peer.cancelled() != n:
        raise WrongResult(f"{await peer.cancelled()} of {n} jobs were there to be shown")
    return Sample(held[len(held) // 2] * 1e3, verified=("all waited",))


async def frame_bytes(loop: Loop, peer: Watched, n: int) -> Sample:
    """Megabytes that a monitor with a viewer keeps while `n` jobs wait, after twenty frames."""
    keys, body = session_keys(n), no_op([])
    async with peer.open(n) as submit:
        for i in range(n):
            submit(body, i, keys[i % len(keys)])
        await _settle(loop)
        before = _traced()
        await peer.frames(FRAMES)
        size = _traced() - before
        peer.clear()
        await peer.ended()
    return Sample(size / 1e6, verified=("all waited",))


async def idle(loop: Loop, peer: Sessions, n: int) -> Sample:
    """Bytes that stay of a session that was used and has nothing to do.

    Two waves of `n` sessions, with different keys. The first lets tables and pools grow to
    their size, which is told apart; what the second leaves behind is a session's own.
    """
    tally = Tally()
    body = no_op(tally)
    waves = [[f"{wave}-{number}" for number in range(n)] for wave in ("first", "second")]
    traced = []
    async with peer.open(n, keep=False) as submit:
        await loop.checkpoint()
        traced.append(_traced())
        for wave in waves:
            target = len(tally) + n
            await submit_all(submit, body, n, wave)
            while len(tally) < target:
                await loop.checkpoint()
            await _settle(loop)
            traced.append(_traced())
    tables, stays = ((traced[i + 1] - traced[i]) / n for i in range(2))
    # A few stray bytes of the measurement itself are no byte a session.
    return Sample(float(round(stays)), verified=("all ran",), figures={"first_wave_bytes": tables})


async def _settle(loop: Loop) -> None:
    for _ in range(10):
        await loop.checkpoint()


def _traced() -> int:
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


SESSION_WORKLOADS = {f.__name__: f for f in (burst, checkpoint, steady, keys, gap, idle)}
CALLER_WORKLOADS = {f.__name__: f for f in (uncontended,)}
LINE_WORKLOADS = {f.__name__: f for f in (priorities,)}
IN_FLIGHT = {f"cycles_{number}": number for number in (1, 2, 10, 20, 100, 200)}
CYCLE_WORKLOADS = {name: partial(cycles, in_flight=number) for name, number in IN_FLIGHT.items()}
FRAME_WORKLOADS = {f.__name__: f for f in (frame, frame_bytes)}
WAITER_WORKLOADS = {f.__name__: f for f in (clear, cancel, waiting, waiting_alone)}
