"""Many waits for lanes while anything happens to these: each ends when it has come true, and then.

Of waits inside jobs that hold up each other some end in errors, and no such waits are left.
Whether one is true is asked of the lanes after each step that any task takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any, TypeAlias

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import (
    Job,
    JobState,
    LaneDeadlockError,
    LaneGroup,
    Lanes,
    UnknownLaneError,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

LANES = ("main", "cron", "t-1", "t-2")
NAMES = (None, *LANES, "t-*", "extra", "session:a", "session:b")
GROUP = ("main", "t-*")
BUDGET = 3
WIDTHS = (1, 3, 0, inf)
ROOMS = (0, 0, 1, 1, 3)  # 0: wait until it is idle, n: until fewer than n wait
Act: TypeAlias = tuple[int, int, int]

ACTS = 80  # in each history
OFTEN = (8, 5, 1, 1, 1, 0.3, 0.3, 0.5, 2, 2, 2, 4)  # each kind, by its number in `act`


@attrs.define(eq=False)
class Waiting:
    """One wait that has begun."""

    name: str | None
    room: int
    job: Job[Any] | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    was_true: bool = False
    was_held_up: bool = False
    over: bool = False


class AtEachStep(trio.abc.Instrument):
    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def after_task_step(self, task: object) -> None:
        self.look()


class Then:
    """Hooks that do one thing each that has been put off until then."""

    def __init__(self, act: Callable[[Act], None], look: Callable[[], None]) -> None:
        self.act = act
        self.look = look
        self.put_off: list[Act] = []

    def told(self, *of: object) -> None:
        if self.put_off:
            self.act(self.put_off.pop())

    def deadlock_refused(self, error: LaneDeadlockError) -> None:
        self.look()

    job_started = job_finished = job_forwarded = lane_idle = lane_empty = told


class History:
    """Lanes, what is done to them, and who waits for them."""

    def __init__(self) -> None:
        self.lanes: Lanes
        self.nursery: trio.Nursery
        self.jobs: list[Job[Any]] = []
        self.waits: list[Waiting] = []
        self.refused: list[Waiting] = []
        self.then = Then(self.act, self.look)
        self.numbers = count(1)
        self.delays: dict[int, float] = {}  # of jobs, by their ids
        self.grouped = False

    async def live(self, acts: Sequence[Act], grouped: bool) -> None:
        self.grouped = grouped
        groups = {"g": LaneGroup(GROUP, concurrency=BUDGET)} if grouped else {}
        recorder = LaneRecorder()
        with trio.CancelScope() as scope:
            async with (
                trio.open_nursery() as self.nursery,
                open_lanes(
                    {"main": 2, "cron": 1, "t-*": 1},
                    groups=groups,
                    instruments=[recorder, self.then],
                ) as self.lanes,
            ):
                instrument = AtEachStep(self.look)
                trio.lowlevel.add_instrument(instrument)
                for act in acts:
                    if act[0] == 11:
                        await trio.sleep(act[1] / 4)
                        await self.settle()
                    elif act[0] == 10:
                        await trio.lowlevel.checkpoint()
                    else:
                        self.act(act)
                        self.look()
                await self.settle()
                recorder.check()
                trio.lowlevel.remove_instrument(instrument)
                scope.cancel()

    async def settle(self) -> None:
        await wait_all_tasks_blocked()
        for wait in self.waits:
            assert wait.over is wait.was_true, wait
        assert not self.held_up()
        assert all(wait.was_held_up and not wait.was_true for wait in self.refused)
        self.waits = [wait for wait in self.waits if not wait.over]

    def act(self, act: Act) -> None:
        """Do something, in which neither a name nor a state is in the way."""
        what, a, b = act
        lanes, name = self.lanes, NAMES[a]
        try:
            match what:
                case 0:
                    self.submit(a, b)
                case 1:
                    self.nursery.start_soon(self.wait, Waiting(name, ROOMS[b % 5], None))
                case 2:
                    self.then.put_off.append(((b + 2) % 10, b, a))
                case 3 if self.waits:
                    self.waits[(a + 9 * b) % len(self.waits)].scope.cancel()
                case 4 if self.jobs:
                    self.jobs[-1 - (a + 9 * b) % len(self.jobs)].cancel()
                case 5:
                    lanes.clear(name)
                case 6:
                    lanes.reset(name)
                case 7:
                    lanes.pause(name)
                case 8:
                    lanes.resume(name)
                case 9:
                    lanes.configure({name or "session:a": None if b == 8 else WIDTHS[b % 4]})
        except (UnknownLaneError, ValueError):
            pass

    def submit(self, a: int, b: int) -> None:
        where: Any = {"lane": LANES[a % 4], "session": (None, "a", "b")[a % 3]}
        match b:
            case 0 | 1:
                body: Any = trio.lowlevel.checkpoint
            case 2 | 3:
                body = partial(trio.sleep, 1)
            case 4:
                body = partial(self.lend, 1)
            case 5:
                body = self.again
            case 6:
                body = partial(trio.sleep, 1)
                where["delay"] = 1 + next(self.numbers) / 1024  # no two end at once
            case _:
                room = 0 if b == 7 else ROOMS[a % 5]
                body = partial(self.wait_inside, Waiting(NAMES[(a * b) % 9], room, None))
        job = self.lanes.submit_nowait(body, **where)
        self.delays[job.id] = where.get("delay", 0)
        self.jobs.append(job)

    async def lend(self, seconds: float) -> None:
        async with this_job().yield_slot():
            await trio.sleep(seconds)

    async def again(self) -> None:
        await trio.sleep(1)
        await this_job().readmit()

    async def wait_inside(self, wait: Waiting) -> None:
        wait.job = this_job()
        await self.wait(wait)

    async def wait(self, wait: Waiting) -> None:
        self.waits.append(wait)
        try:
            with wait.scope:
                if wait.room == 0:
                    await self.lanes.wait_idle(wait.name)
                elif wait.room == 1:
                    await self.lanes.wait_empty(wait.name)
                else:
                    await self.lanes.wait_room(wait.room, wait.name)
                wait.over = True
        except UnknownLaneError:
            pass
        except LaneDeadlockError:
            self.refused.append(wait)
        finally:
            if not wait.over:
                self.waits.remove(wait)

    # ---- what is true

    def look(self) -> None:
        for wait in [wait for wait in self.open_waits() if self.is_true(wait)]:
            wait.was_true = True
        for wait in self.held_up():
            wait.was_held_up = True

    def open_waits(self) -> list[Waiting]:
        return [wait for wait in self.waits if not (wait.over or wait.was_true)]

    def is_true(self, wait: Waiting) -> bool:
        return not self.has_any(wait, self.awaited(wait))

    def awaited(self, wait: Waiting) -> set[Job[Any]]:
        """The jobs in the lanes of ``wait`` that it does not leave out."""
        jobs = {job for job in self.lanes.jobs() if self.is_of(job, wait.name)}
        return jobs - self.left_out([wait.job])

    def has_any(self, wait: Waiting, jobs: set[Job[Any]]) -> bool:
        """Whether ``jobs`` in the lanes of ``wait`` are as many as keep it from being true."""
        if wait.room:
            return sum(job.state is JobState.WAITING for job in jobs) >= wait.room
        return bool(jobs)

    def held_up(self) -> list[Waiting]:
        """The waits inside jobs that cannot come true as long as these jobs do not end."""
        found = [wait for wait in self.open_waits() if wait.job is not None]
        while True:
            held = self.left_out([wait.job for wait in found])
            left = [wait for wait in found if self.has_any(wait, self.awaited(wait) & held)]
            if left == found:
                return found
            found = left

    def is_of(self, job: Job[Any], name: str | None) -> bool:
        if name == "t-*":
            return self.lanes.lane(job.lane).label == name
        return name in (None, job.lane, f"session:{job.session}")

    def left_out(self, held: Sequence[Job[Any] | None]) -> set[Job[Any]]:
        """These jobs, and each job that cannot start or end before these have ended."""
        found = {job for job in held if job is not None}
        jobs = self.lanes.jobs()
        while found and (more := {job for job in jobs if self.needs(job, found)} - found):
            found |= more
        return found

    def needs(self, job: Job[Any], held: set[Job[Any]]) -> bool:
        """Whether ``job`` cannot start or end as long as those that are held do not."""
        if job.state is JobState.WAITING:
            return self.is_full(job.lane, held) or self.has_no_turn(job, held)
        has_slot = job in self.lanes.lane(job.lane).limiter.statistics().borrowers
        return not has_slot and self.is_full(job.lane, held)

    def is_full(self, name: str, held: set[Job[Any]]) -> bool:
        """Whether jobs that are held have all slots of that lane, or all tokens of its group."""
        lane = self.lanes.lane(name)
        holders = {
            job: self.lanes.lane(job.lane)
            for job in held
            if job.state is JobState.RUNNING
            if job in self.lanes.lane(job.lane).limiter.statistics().borrowers
        }
        in_lane = sum(other.name == name for other in holders.values())
        in_group = sum(other.label in GROUP for other in holders.values())
        if self.grouped and lane.label in GROUP and in_group >= BUDGET:
            return True
        return 0 < lane.concurrency <= in_lane

    def has_no_turn(self, job: Job[Any], held: set[Job[Any]]) -> bool:
        """Whether jobs that are held, or that they keep from starting, have its session's slots."""
        if job.session is None:
            return False
        of_session = [one for one in self.lanes.jobs() if one.session == job.session]
        before = [
            one
            for one in of_session
            if one.state is JobState.WAITING and self.due(one) < self.due(job)
            if one.lane != job.lane and self.due(one)[0] <= trio.current_time()
        ]
        taken = sum(one.state is JobState.RUNNING and one in held for one in of_session)
        taken += sum(self.is_full(one.lane, held) for one in before)
        return 0 < self.lanes.session(job.session).config.concurrency <= taken

    def due(self, job: Job[Any]) -> tuple[float, int]:
        """Where ``job`` stands in its session."""
        return job.submitted_at + self.delays.get(job.id, 0), job.id


@pytest.mark.many_seeds(60)
async def test_a_wait_for_lanes_ends_when_it_has_come_true_and_not_before(
    autojump_clock: MockClock, scheduler_seed: int
) -> None:
    chance = random.Random(scheduler_seed)
    kinds = chance.choices(range(12), OFTEN, k=ACTS)
    acts = [(kind, chance.randrange(9), chance.randrange(9)) for kind in kinds]
    await History().live(acts, grouped=chance.random() < 0.5)
