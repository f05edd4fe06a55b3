"""Kills workers again and again while they run jobs, and looks at what they have noted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from tests.durable.kill_program import (
    CAP,
    CHILDREN,
    ESTIMATE,
    FAMILY,
    LANES,
    LEASE,
    MONTH_CAP,
    MONTHS,
    USED,
    month_of,
    tenant_of,
    used_of,
)
from trio_lanes.durable import DurableLanes, DurableState, DurableStatus, StoreUnavailableError

PROCESSES = 4
SESSIONS = 240
BACKLOG = {"family": 6, "main": 120, "few": 6}
GRANT, GRANT_EVERY = 9, 0.5
LONG = 300
"""Seconds for a busy machine to come to the end of the jobs that are left."""
SOON = 30
"""Seconds for which a kill waits for a run of its victim, which has just been started on a busy
machine."""
PARENT_EVERY = 5
"""A parent is killed once in so many kills."""
STOP_EVERY = 40
"""A process is stopped for longer than its lease once in so many kills."""


MONTHLY = ("asks", "refused", "got", "settles", "settled")


def steady_zone() -> str:
    """Return a time zone in which no month ends within hours of now."""
    utc = datetime.now(UTC)
    months = {(utc + timedelta(hours=hours)).month for hours in (8, 20)}
    return "UTC" if len(months) > 1 else "Pacific/Kiritimati"  # 14 hours ahead


@attrs.define
class Run:
    """What is known of one run of a job."""

    job: int
    fence: int
    session: str
    payload: int
    lane: str
    pid: int
    begun: float
    ended: float | None = None
    cut: bool = False
    """It was cancelled, or its process stood still: it may overlap the next run."""
    noted: float | None = None
    """When it ended by its own account, or its process was seen to have ended."""
    killed: bool = False


class Log:
    """What the workers have noted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._read = 0
        self.runs: dict[int, Run] = {}
        self.done: set[int] = set()  # payloads
        # {fence: (payload, how much it took at least)}
        self.spent: dict[int, tuple[int, int]] = {}
        # {fence: (payload, the last word)}, of budgets of a month
        self.months: dict[int, tuple[int, str]] = {}
        self.parents: set[int] = set()  # fences
        self._parents: defaultdict[int, set[int]] = defaultdict(set)  # those that run
        self._running: defaultdict[int, dict[int, Run]] = defaultdict(dict)

    def read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            what, job, fence, session, payload, lane, pid, now = line.decode().split()
            if what in ("spent", "used"):
                self.spent[int(fence)] = (int(payload), ESTIMATE if what == "spent" else USED)
                continue
            if what in MONTHLY:
                self.months[int(fence)] = int(payload), what
            elif what == "parent":
                self.parents.add(int(fence))
                self._parents[int(pid)].add(int(fence))
            elif what == "parted":
                self._parents[int(pid)].discard(int(fence))
            elif what == "begin":
                assert int(fence) not in self.runs
                run = Run(int(job), int(fence), session, int(payload), lane, int(pid), float(now))
                self.runs[run.fence] = self._running[run.pid][run.fence] = run
            else:
                run = self.runs[int(fence)]
                self._running[run.pid].pop(run.fence, None)
                run.noted = float(now)
                run.cut = run.cut or what != "end"
                if what != "cut":
                    run.ended = float(now)
                    self.done.add(run.payload)

    def running(self, pid: int) -> list[Run]:
        self.read()
        return list(self._running[pid].values())

    def died(self, pid: int, when: float) -> tuple[int, int]:
        """Note that a process was killed; return how many runs that hit, and how many parents."""
        hit = self.running(pid)
        for run in hit:
            run.ended, run.killed, run.noted = when, True, when
        del self._running[pid]
        return len(hit), len(self._parents.pop(pid, ()))

    def stopped(self, pid: int, when: float) -> None:
        for run in self.running(pid):
            run.ended, run.cut = when, True


class Workers:
    """The process that forks workers."""

    def __init__(self, kind: str, address: str, log: Path) -> None:
        command = [sys.executable, "-m", "tests.durable.kill_program", kind, address, str(log)]
        with log.with_suffix(".errors").open("wb") as errors:
            self._program = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "KILLS_ZONE": steady_zone()},
            )

    async def _ask(self, line: str) -> int:
        def ask() -> int:
            assert self._program.stdin is not None
            assert self._program.stdout is not None
            self._program.stdin.write(f"{line}\n")
            self._program.stdin.flush()
            return int(self._program.stdout.readline())

        return await trio.to_thread.run_sync(ask)

    async def start(self) -> int:
        return await self._ask("start")

    async def parent(self) -> int:
        return await self._ask("parent")

    async def reap(self, pid: int) -> None:
        await self._ask(f"reap {pid}")

    def close(self) -> None:
        self._program.communicate(timeout=LONG)


TICK = 0.25
"""Seconds between two due times of the schedule."""

T = TypeVar("T")


async def again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a store that may be away until it answers."""
    while True:
        with suppress(StoreUnavailableError):
            return await ask()
        await trio.sleep(0.1)


async def nothing(pid: int) -> None:
    """Leave a dead process to the end of its lease."""


@attrs.define
class Story:
    """One series of kills."""

    lanes: DurableLanes
    workers: Workers
    log: Log
    dice: random.Random
    bury: Callable[[int], Awaitable[None]]
    families: int | None = 0
    """How many parents were submitted; None: there are none."""
    parents_hit: int = 0
    submitted: int = 0
    kills: int = 0
    kills_that_hit: int = 0
    runs_hit: int = 0
    stops: int = 0
    pids: list[int] = attrs.Factory(list)
    parent: int = 0
    """The pid of the process that serves the file, if it is killed, too."""
    parents_killed: int = 0
    longest: float = 0.0
    """How long a worker has lived without its parent, in seconds."""
    first_tick: float = 0.0

    async def submit(self) -> None:
        """Keep some jobs waiting, in each lane."""
        while True:
            with suppress(StoreUnavailableError):
                there = (await self.lanes.statistics()).lanes
                for lane, most in BACKLOG.items():
                    submit = self._submit_family if lane == "family" else self._submit_one
                    for _ in range(most - there[lane].waiting - there[lane].running):
                        await submit(lane)
            await trio.sleep(0.02)

    async def _submit_family(self, lane: str) -> None:
        if self.families is not None:
            n = self.families
            await self.lanes.submit("family", n, lane=lane, key=f"family-{n}")
            self.families += 1

    async def grant(self) -> None:
        """Grant more of the budgets of the month, one after the other."""
        while True:
            for n in range(MONTHS):
                await trio.sleep(GRANT_EVERY)
                with suppress(StoreUnavailableError, LookupError):  # it may not be known yet
                    await self.lanes.grant(f"month:{n}", tokens=GRANT)

    async def _submit_one(self, lane: str) -> None:
        n = self.submitted
        # with its key it is the same job if it is submitted again, whether it was accepted or not
        await self.lanes.submit("job", n, session=f"{lane}-{n % SESSIONS}", lane=lane, key=str(n))
        self.submitted += 1

    async def kill(self) -> None:
        place = self.dice.randrange(len(self.pids))
        pid = self.pids.pop(place)
        if self.dice.random() < 0.8:  # else at any moment
            with trio.move_on_after(SOON):
                while not self.log.running(pid):  # noqa: ASYNC110 - another process
                    await trio.sleep(0.005)
        await trio.sleep(self.dice.random() * 0.02)
        when = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await self.workers.reap(pid)
        hit, parents = self.log.died(pid, when)
        self.kills += 1
        self.parents_hit += parents
        self.kills_that_hit += hit > 0
        self.runs_hit += hit
        await self.bury(pid)
        self.pids.append(await self.workers.start())

    async def stop(self) -> None:
        """Stop a process for longer than its lease."""
        pid = self.pids.pop(0)
        os.kill(pid, signal.SIGSTOP)
        self.log.stopped(pid, time.monotonic())
        self.stops += 1
        await trio.sleep(LEASE * 1.5)
        self.log.stopped(pid, time.monotonic())
        os.kill(pid, signal.SIGCONT)
        self.pids.append(pid)

    async def kill_parent(self) -> None:
        """Kill the parent while its workers run jobs, and start another at once, with workers."""
        with trio.move_on_after(SOON):
            while not any(map(self.log.running, self.pids)):  # noqa: ASYNC110 - other processes
                await trio.sleep(0.005)
        await trio.sleep(self.dice.random() * 0.02)
        orphans, self.pids = self.pids, []
        when = time.monotonic()
        os.kill(self.parent, signal.SIGKILL)
        await self.workers.reap(self.parent)
        self.kills += 1
        self.kills_that_hit += any(map(self.log.running, orphans))
        self.parent = await self.workers.parent()
        for _ in orphans:
            self.pids.append(await self.workers.start())
        for pid in orphans:
            await self.workers.reap(pid)
            self.longest = max(self.longest, time.monotonic() - when)
            self.log.died(pid, time.monotonic())
        self.parents_killed += 1

    async def kill_families(self, kills: int) -> None:
        """Kill workers, and now and then their parent."""
        for n in range(kills):
            if n % PARENT_EVERY == PARENT_EVERY - 1:
                await self.kill_parent()
            else:
                await self.kill()

    def check_nothing_ran_twice_at_once(self) -> None:
        """Check that no two runs of a job have overlapped, cut ones included."""
        by_job: defaultdict[int, list[Run]] = defaultdict(list)
        for run in self.log.runs.values():
            by_job[run.job].append(run)
        for of in by_job.values():
            for one, next_one in pairwise(sorted(of, key=lambda run: run.begun)):
                assert one.noted is not None, of
                assert one.noted <= next_one.begun, of

    async def kill_and_stop(self, kills: int) -> None:
        """Kill processes, and stop some for longer than their leases."""
        async with trio.open_nursery() as stopping:
            for n in range(kills):
                if n % STOP_EVERY == STOP_EVERY // 8:
                    stopping.start_soon(self.stop)
                await self.kill()

    async def roll(self, times: int) -> None:
        """Have processes drain, one after the other, as a deployment does."""
        for _ in range(times):
            await trio.sleep(self.dice.random() * 0.3)
            pid = self.pids.pop(0)
            os.kill(pid, signal.SIGTERM)
            await self.workers.reap(pid)
            self.pids.append(await self.workers.start())

    async def tick(self) -> None:
        """Have a schedule submit jobs, four in a second."""
        options: Any = {"overlap": "queue", "catch_up": 500, "session": "tick"}
        await again(lambda: self.lanes.schedule("tick", "job", every=TICK, **options))
        (first,) = await again(self.lanes.schedules)
        assert first.next is not None
        self.first_tick = first.next

    async def _check_ticks(self, jobs: list[DurableStatus]) -> None:
        """Check that each due time was submitted once, or counted."""
        (one,) = await self.lanes.schedules()
        keys = {job.key for job in jobs}
        assert len(keys) == len(jobs) > 0
        assert one.last is not None
        assert round((one.last - self.first_tick) / TICK) + 1 == len(jobs) + one.skipped

    async def go_on(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Run jobs until the disturbance has ended, and then let all jobs end."""
        for _ in range(PROCESSES):
            self.pids.append(await self.workers.start())
        await self.tick()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.submit)
            nursery.start_soon(self.grant)
            await disturb()
            nursery.cancel_scope.cancel()
        await again(lambda: self.lanes.pause("schedule:tick"))
        with trio.fail_after(LONG):
            while True:
                with suppress(StoreUnavailableError):
                    now = await self.lanes.statistics()
                    if not (now.waiting or now.parked or now.running):
                        break
                await trio.sleep(0.1)
        self.log.read()

    # ---- what must hold

    async def _check_all_ended(self) -> list[DurableStatus]:
        jobs = await self.lanes.jobs(limit=-1)
        assert {job.state for job in jobs} == {DurableState.SUCCEEDED}  # not lost
        await self._check_ticks([job for job in jobs if job.session == "tick"])
        jobs = [job for job in jobs if job.session != "tick"]
        children = await self._check_families(jobs)
        others = {job.id for job in children}
        jobs = [job for job in jobs if job.lane != "family" and job.id not in others]
        assert [job.key for job in jobs] == [str(n) for n in range(self.submitted)]  # nor doubled
        assert (await self.lanes.check()).problems == ()
        payloads = range(FAMILY, FAMILY + len(children))
        assert self.log.done == {*range(self.submitted), *payloads}
        await self._check_months()
        return [*jobs, *children]

    async def _check_families(self, jobs: list[DurableStatus]) -> list[DurableStatus]:
        """Check that each parent has its own children, and their results; return the children."""
        parents = [job for job in jobs if job.lane == "family"]
        assert [job.key for job in parents] == [f"family-{n}" for n in range(self.families or 0)]
        found = {job.key: job for job in jobs if job.key and "/" in job.key}
        children: list[DurableStatus] = []
        for n, parent in enumerate(parents):
            its = [found.pop(f"{parent.id}/{place}") for place in range(1, CHILDREN + 1)]
            children += its
            payloads = [FAMILY + n * CHILDREN + place for place in range(CHILDREN)]
            results = [await self.lanes.job(child.id).wait() for child in its]
            assert results == payloads
            end = await self.lanes.job(parent.id).wait()
            assert end == [payloads, [CHILDREN, CHILDREN]], (parent, end)
        assert not found  # none was submitted twice
        return children

    async def _check_months(self) -> None:
        """Check that no more was admitted than the cap and what was granted, but by settles."""
        grants = Counter[str]()
        for record in await self.lanes.log("grants").read():
            grants[record.data["quota"]] += record.data["granted"]["tokens"]
        for name in {month_of(payload) for payload, _ in self.log.months.values()}:
            least = most = above = 0
            for fence, (payload, word) in self.log.months.items():
                if month_of(payload) == name:
                    low, high = spent_of(payload, word)
                    least += low
                    # what a run got that was stopped may be forgotten, and taken again
                    most += high + self.log.runs[fence].cut * ESTIMATE
                    above += max(0, high - ESTIMATE)
            (quota,) = (await self.lanes.statistics(quota=name)).quotas
            (level,) = quota.levels
            assert level.granted == grants[name]
            assert least <= level.used <= most, (name, least, level.used, most)
            assert level.used - above <= MONTH_CAP + grants[name], (name, level, above)

    async def check(self) -> None:
        jobs = await self._check_all_ended()
        runs: defaultdict[int, list[Run]] = defaultdict(list)
        for run in self.log.runs.values():
            runs[run.job].append(run)
        for job in jobs:
            of = runs[job.id]
            # a run more only for a crash, or for a lease that was lost
            assert len(of) <= 1 + job.crashes + sum(run.cut for run in of), (job, of)
            assert job.crashes >= sum(run.killed and not run.cut for run in of), (job, of)
        self._check_order()
        self._check_limits()
        self._check_budgets()
        assert self.kills_that_hit >= self.kills / 2, (self.kills_that_hit, self.kills)
        assert self.parents_hit or self.kills < 20

    async def check_after_losses(self) -> str:
        """Check what holds although the server has lost its last moments; say what was lost.

        A job whose end was lost runs again, and so may a job whose claim was lost.
        """
        jobs = await self.lanes.jobs(limit=-1)
        assert {job.state for job in jobs} == {DurableState.SUCCEEDED}
        assert (await self.lanes.check()).problems == ()
        kept = {int(job.key or "") for job in jobs if job.session != "tick"}  # no family is there
        assert kept <= set(range(self.submitted))
        ran = Counter(run.payload for run in self.log.runs.values() if run.ended is not None)
        assert kept <= set(ran)
        for session, of in self._by_session().items():
            first = list(dict.fromkeys(run.payload for run in of))
            assert first == sorted(first), (session, of)
        self._check_limits()
        again = sum(times - 1 for times in ran.values())
        lost = self.submitted - len(kept)
        return f"{lost} of {self.submitted} accepted jobs were lost, {again} runs were repeated"

    async def check_nothing_repeated(self) -> None:
        """Check that each job ran once, and that no crash was counted."""
        await self._check_all_ended()
        assert len(self.log.runs) == len(self.log.done)
        assert len(self.log.parents) == self.families
        assert not any(run.cut for run in self.log.runs.values())
        assert {job.crashes for job in await self.lanes.jobs(limit=-1)} == {0}
        self._check_order()

    def _by_session(self) -> dict[str, list[Run]]:
        by_session: defaultdict[str, list[Run]] = defaultdict(list)
        for _, run in sorted(self.log.runs.items()):
            by_session[run.session].append(run)
        return by_session

    def _check_order(self) -> None:
        for session, of in self._by_session().items():
            payloads = [run.payload for run in of]
            assert payloads == sorted(payloads), (session, of)
            assert most_at_once(of) <= 1, (session, of)  # none, if all were cut

    def _check_limits(self) -> None:
        for lane, limit in LANES.items():
            together = most_at_once(run for run in self.log.runs.values() if run.lane == lane)
            assert together <= limit, (lane, together)

    def _check_budgets(self) -> None:
        spent: Counter[str] = Counter()
        for payload, amount in self.log.spent.values():
            spent[tenant_of(payload)] += amount
        # what was taken and not noted, by the dead, is more
        assert max(spent.values()) <= CAP, spent

    def summary(self) -> str:
        return (
            f"{self.kills} kills, {self.kills_that_hit} of them of processes that ran jobs "
            f"({self.runs_hit} runs, {self.parents_hit} parents), {self.stops} stops,"
            f" {self.parents_killed} of parents, after which a worker lived {self.longest:.2f} s"
            f" at most;"
            f" {self.submitted} jobs, {self.families} families; of months"
            f" {dict(Counter(word for _, word in self.log.months.values()))}"
        )


def spent_of(payload: int, word: str) -> tuple[int, int]:
    """Return what a run has spent of a month at least and at most, by its last word of it."""
    used = used_of(payload)
    return {
        "asks": (0, ESTIMATE),
        "refused": (0, 0),
        "got": (ESTIMATE, ESTIMATE),
        "settles": (min(ESTIMATE, used), max(ESTIMATE, used)),
        "settled": (used, used),
    }[word]


def most_at_once(runs: Iterable[Run]) -> int:
    """Return how many of the runs, except cut ones, overlapped."""
    moments: list[tuple[float, int]] = []
    for run in runs:
        if not run.cut:
            assert run.ended is not None, run
            moments += [(run.begun, 1), (run.ended, -1)]
    now = most = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


@asynccontextmanager
async def killing(
    lanes: DurableLanes,
    kind: str,
    address: str,
    folder: Path,
    bury: Callable[[int], Awaitable[Any]] = nothing,
) -> AsyncIterator[Story]:
    """Make workers, and end them."""
    log = folder / "runs"
    workers = Workers(kind, address, log)
    story = Story(lanes, workers, Log(log), random.Random(1), bury)
    try:
        yield story
    finally:
        for pid in story.pids:
            os.kill(pid, signal.SIGCONT)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(workers.close)
