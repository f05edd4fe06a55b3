"""Any waits of any jobs: an error exactly where, without it, the wait would never end.

What is right is found by trying. A history is lived through twice: once with jobs that wait
themselves, and get errors; then again up to each wait, but with tasks outside of all jobs that do
the waiting, so that nothing is an error, and with everything let go that can go: if that wait does
not end then, nothing can end it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    LaneError,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    Lanes,
    current_job,
    open_lanes,
)

INF = float("inf")
Order = Callable[[Job[Any]], Awaitable[None]]


@attrs.frozen
class Setting:
    """The lanes in which everything happens."""

    concurrency: tuple[int, int] = (1, 1)
    max_waiting: tuple[float, float] = (INF, INF)
    session_concurrency: int = 1
    session_max_waiting: float = INF
    group: tuple[int, int] | None = None  # its budget, and what of that is reserved for "cron"

    def open(self, instrument: LaneInstrument) -> AbstractAsyncContextManager[Lanes]:
        names = ("main", "cron")
        lanes = {
            name: LaneConfig(concurrency=concurrency, max_waiting=max_waiting, warn_after=INF)
            for name, concurrency, max_waiting in zip(
                names, self.concurrency, self.max_waiting, strict=True
            )
        }
        groups = {}
        if self.group is not None:
            budget, reserved = self.group
            groups["g"] = LaneGroup(names, concurrency=budget, reserve={"cron": reserved})
        sessions = LaneConfig(
            concurrency=self.session_concurrency, max_waiting=self.session_max_waiting
        )
        return open_lanes(lanes, sessions=sessions, groups=groups, instruments=[instrument])


@attrs.frozen
class Step:
    """One thing that happens: a job is submitted, ends, or begins to wait."""

    kind: str
    number: int = 0  # picks the job that does it
    target: int = 0  # picks the job that it waits for
    lane: str = "main"
    session: str | None = None
    priority: int = 0
    lends: bool = False


class World(LaneInstrument):
    """Jobs that do what they are told, and what became of their waits."""

    def __init__(self, *, inside: bool) -> None:
        self.inside = inside  # whether jobs wait themselves
        self.lanes: Lanes
        self.nursery: trio.Nursery
        self.jobs: list[Job[Any]] = []
        self.orders: dict[Job[Any], trio.MemorySendChannel[Order]] = {}  # for those that run
        self.lends: dict[Job[Any], bool] = {}  # whether all its waits lend its slot, or none
        self.released = False  # whether jobs end as soon as they can
        self.ended: list[bool] = []  # of each wait, whether it did
        self.errors: set[int] = set()  # the waits that were said to be deadlocks

    def job_submitted(self, job: Job[Any]) -> None:
        self.jobs.append(job)

    async def body(self) -> None:
        job = current_job()
        assert job is not None
        if self.released:
            return
        self.orders[job], receive = trio.open_memory_channel(INF)
        async with trio.open_nursery() as nursery:
            async for order in receive:
                nursery.start_soon(order, job)

    def release(self) -> None:
        """Let everything end that can."""
        self.released = True
        for order in self.orders.values():
            order.close()

    async def take(self, step: Step, *, fails: bool = False) -> bool:
        """Take ``step``; whether it began a wait. ``fails``: that is known to be a deadlock."""
        try:
            return self._begin(step, fails)
        finally:
            await wait_all_tasks_blocked()

    def _begin(self, step: Step, fails: bool) -> bool:
        if step.kind.startswith("submit") and self.ended:
            # What comes later and goes before others in their session may make a knot without any
            # wait that begins. Nobody is told of those.
            step = attrs.evolve(step, session=None)
        if step.kind == "submit":
            try:
                self.lanes.submit_nowait(
                    self.body, lane=step.lane, session=step.session, priority=step.priority
                )
            except LaneFullError:
                pass
            return False
        running = [job for job in self.jobs if job in self.orders and not job.done]
        if not running:
            return False
        job = running[step.number % len(running)]
        if step.kind == "end":
            self.orders[job].close()
            return False
        if self.lends.setdefault(job, step.lends) is not step.lends:
            return False
        known = [job for job in self.jobs if not job.done]
        target = known[step.target % len(known)]
        number = len(self.ended)

        async def wait(job: Job[Any]) -> None:
            try:
                await self._wait(job, step, target, fails, number)
            except LaneDeadlockError:
                self.errors.add(number)
            except LaneError:  # what it waited for was withdrawn
                self.ended[number] = True

        try:
            self.orders[job].send_nowait(wait)
        except trio.ClosedResourceError:
            return False
        self.ended.append(False)
        return True

    async def _wait(
        self, job: Job[Any], step: Step, target: Job[Any], fails: bool, number: int
    ) -> None:
        def lend() -> AbstractAsyncContextManager[None]:
            return job.yield_slot() if step.lends else nullcontext()

        options: Any = {"lane": step.lane, "session": step.session, "priority": step.priority}
        if step.kind == "run" and self.inside:
            await self.lanes.run(self.body, **options, yield_slot=step.lends)
            self.ended[number] = True
            return
        child = self._enter(options) if step.kind == "run" else None
        async with lend():
            if step.kind == "run":
                child = child or self._enter(options)
                if fails:
                    if child is not None:
                        child.cancel()
                else:
                    await self._outside(self._see_through, child, options)
            elif step.kind == "submit for room":
                if self.inside:
                    await self.lanes.submit(self.body, **options)
                elif self._enter(options) is None and not fails:
                    await self._outside(self._submit, options)
            elif not fails:
                wait = target.wait_started if step.kind == "wait_started" else target.wait_done
                await (wait() if self.inside else self._outside(wait))
            self.ended[number] = not fails

    def _enter(self, options: Any) -> Job[Any] | None:
        try:
            return self.lanes.submit_nowait(self.body, **options)
        except LaneFullError:
            return None

    async def _submit(self, options: Any) -> Job[Any]:
        return await self.lanes.submit(self.body, **options)

    async def _see_through(self, child: Job[Any] | None, options: Any) -> None:
        await (child or await self._submit(options)).wait_done()

    async def _outside(self, fn: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Have ``fn(*args)`` waited for by a task outside of this job."""

        async def wait() -> None:
            try:
                await fn(*args)
            except LaneError:  # what it waited for was withdrawn
                pass
            over.set()

        over = trio.Event()
        self.nursery.start_soon(wait)
        await over.wait()


def live(setting: Setting, world: World, history: Callable[[], Awaitable[None]]) -> None:
    """Run ``history`` in a world."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as world.nursery, setting.open(world) as world.lanes:
                await history()
                scope.cancel()

    trio.run(main, clock=MockClock())


def check(setting: Setting, steps: Sequence[Step]) -> list[bool]:
    """Whether each wait was an error, which must be so just if it could never end."""
    real = World(inside=True)
    waits: list[int] = []  # the steps that began one

    async def act() -> None:
        for index, step in enumerate(steps):
            if await real.take(step):
                waits.append(index)
                # Whoever has lent its slot is told when it has one again.
                at_once = real.errors | {n for n, lent in enumerate(waits) if steps[lent].lends}
        real.release()
        await wait_all_tasks_blocked()
        left = [(job, job.blocked_by()) for job in real.lanes.jobs()]
        assert not left, f"{left} hang, after {waits}"
        assert not waits or real.errors <= at_once

    live(setting, real, act)
    errors = [number in real.errors for number in range(len(waits))]
    failed = {index for index, error in zip(waits, errors, strict=True) if error}
    for index, error in zip(waits, errors, strict=True):
        trial = World(inside=False)

        async def try_it(trial: World = trial, index: int = index) -> None:
            for number, step in enumerate(steps[: index + 1]):
                await trial.take(step, fails=number in failed and number < index)
            trial.release()
            await wait_all_tasks_blocked()

        live(setting, trial, try_it)
        assert error is not trial.ended[-1], (index, steps[index], failed)
    return errors


settings_of_lanes = st.builds(
    Setting,
    concurrency=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    max_waiting=st.tuples(*[st.sampled_from([INF, INF, 0, 1, 2])] * 2),
    session_concurrency=st.integers(1, 2),
    session_max_waiting=st.sampled_from([INF, INF, 0, 1]),
    group=st.sampled_from([None, None, (1, 0), (2, 0), (2, 1), (3, 1)]),
)
any_steps = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(
            ["submit"] * 4 + ["run"] * 3 + ["wait"] * 2 + ["wait_started", "submit for room", "end"]
        ),
        number=st.integers(0, 3),
        target=st.integers(0, 5),
        lane=st.sampled_from(["main", "main", "cron"]),
        session=st.sampled_from([None, None, "alice", "bob"]),
        priority=st.sampled_from([0, 0, 1]),
        lends=st.sampled_from([False, False, True]),
    ),
    min_size=3,
    max_size=16,
)


@settings(max_examples=60)
@given(st.random_module(), settings_of_lanes, any_steps)
def test_a_wait_is_an_error_just_if_nothing_could_ever_end_it(
    random_module: random.Random, setting: Setting, steps: list[Step]
) -> None:
    check(setting, steps)


def test_the_trial_itself_finds_both_kinds() -> None:
    submit, run = Step("submit"), Step("run")
    assert check(Setting(), [submit, run]) == [True]
    assert check(Setting(concurrency=(2, 1)), [submit, run]) == [False]
    assert check(Setting(), [submit, attrs.evolve(run, lends=True)]) == [False]
