"""Any waits of any jobs: an error exactly where, without it, the wait would never end.

What is right is found by trying. A history is lived through once with jobs that wait themselves,
and get errors. Then again up to each step of it, but with tasks outside of all jobs that do the
waiting, so that nothing is an error, and with everything let go that can go: whatever does not end
then can never end. If that is any wait, one of those has to have been an error in that very step,
and without those that were, all others have to end.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.chaos import examples
from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    LaneError,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    Lanes,
    RateLimit,
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
    session_rate: bool = False  # one that nothing waits for
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
            concurrency=self.session_concurrency,
            max_waiting=self.session_max_waiting,
            rate=RateLimit(1000, algorithm="sliding") if self.session_rate else (),
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

    def __init__(self, *, inside: bool, mixed: bool) -> None:
        self.inside = inside  # whether jobs wait themselves
        self.mixed = mixed  # whether some waits of a job may lend its slot, and others not
        self.lends: dict[Job[Any], bool] = {}  # whether the first wait of each did
        self.lanes: Lanes
        self.nursery: trio.Nursery
        self.jobs: list[Job[Any]] = []
        self.orders: dict[Job[Any], trio.MemorySendChannel[Order]] = {}  # for those that run
        self.released = False  # whether jobs end as soon as they can
        self.ended: list[bool] = []  # of each wait, whether it did
        self.scopes: list[trio.CancelScope] = []  # of each wait
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

    async def release(self) -> None:
        """Let everything end that can."""
        self.released = True
        for order in self.orders.values():
            order.close()
        await wait_all_tasks_blocked()

    def stuck(self) -> set[int]:
        """The waits that have not ended."""
        return {number for number, ended in enumerate(self.ended) if not ended}

    async def take(self, step: Step, *, fails: bool = False) -> None:
        """Take ``step``. ``fails``: the wait that it begins is known to be a deadlock."""
        self._begin(step, fails)
        await wait_all_tasks_blocked()

    async def fail(self, number: int) -> None:
        """End the wait of that number, which is known to be a deadlock now."""
        self.scopes[number].cancel()
        self.ended[number] = True
        await wait_all_tasks_blocked()

    def _begin(self, step: Step, fails: bool) -> None:
        if step.kind == "submit":
            self._enter(step)
            return
        running = [job for job in self.jobs if job in self.orders and not job.done]
        if not running:
            return
        job = running[step.number % len(running)]
        if step.kind == "end":
            self.orders[job].close()
            return
        if step.kind == "submit for room":
            step = attrs.evolve(step, lends=False)
        if self.lends.setdefault(job, step.lends) is not step.lends and not self.mixed:
            return
        known = [job for job in self.jobs if not job.done]
        target = known[step.target % len(known)]
        if step.kind == "wait_started" and target.started_at is not None:
            return
        number, scope = len(self.ended), trio.CancelScope()

        async def wait(job: Job[Any]) -> None:
            with scope:
                try:
                    await (self._wait if self.inside else self._see)(job, step, target, number)
                except LaneError:  # what it waited for was withdrawn, or it was an error
                    pass
            self.ended[number] = True

        try:
            self.orders[job].send_nowait(wait)
        except trio.ClosedResourceError:
            return
        self.ended.append(False)
        self.scopes.append(scope)
        if fails:
            scope.cancel()
            self.ended[number] = True

    def _enter(self, step: Step) -> Job[Any] | None:
        options: Any = {"lane": step.lane, "session": step.session, "priority": step.priority}
        try:
            return self.lanes.submit_nowait(self.body, **options)
        except LaneFullError:
            return None

    async def _submit(self, step: Step) -> Job[Any]:
        options: Any = {"lane": step.lane, "session": step.session, "priority": step.priority}
        return await self.lanes.submit(self.body, **options)

    async def _wait(self, job: Job[Any], step: Step, target: Job[Any], number: int) -> None:
        """Wait inside ``job``."""
        if step.kind == "run" and not step.lends:
            with self._told(number):
                await self.lanes.run(
                    self.body, lane=step.lane, session=step.session, priority=step.priority
                )
            return
        async with job.yield_slot() if step.lends else nullcontext():
            child = self._enter(step) if step.kind == "run" else None
            with self._told(number):  # when it has its slot again it is too late to say so
                if child is not None:
                    try:
                        await child.wait_done()
                    except LaneDeadlockError:
                        child.cancel()
                        raise
                elif step.kind in ("run", "submit for room"):
                    await self._submit(step)
                else:
                    wait = target.wait_started if step.kind == "wait_started" else target.wait_done
                    await wait()
            self.ended[number] = True

    @contextmanager
    def _told(self, number: int) -> Iterator[None]:
        try:
            yield
        except LaneDeadlockError:
            self.errors.add(number)
            raise

    async def _see(self, job: Job[Any], step: Step, target: Job[Any], number: int) -> None:
        """Have a task outside of ``job`` wait; if that is cancelled, so is what it submitted."""
        child: Job[Any] | None = None
        over = trio.Event()

        async def wait() -> None:
            nonlocal child
            with scope, suppress(LaneError):
                match step.kind:
                    case "run" if child is not None or not step.lends:
                        child = child or await self._submit(step)
                        await child.wait_done()
                    case "run" | "submit for room":
                        child = child or await self._submit(step)
                    case "wait_started":
                        await target.wait_started()
                    case _:
                        await target.wait_done()
            over.set()

        scope = trio.CancelScope()
        async with job.yield_slot() if step.lends else nullcontext():
            child = self._enter(step) if step.kind in ("run", "submit for room") else None
            self.nursery.start_soon(wait)
            try:
                await over.wait()
            except trio.Cancelled:
                scope.cancel()
                if step.kind == "run" and child is not None:
                    child.cancel()
                raise
            self.ended[number] = True


def live(setting: Setting, world: World, history: Callable[[], Awaitable[None]]) -> None:
    """Run ``history`` in a world."""

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as world.nursery, setting.open(world) as world.lanes:
                await history()
                scope.cancel()

    trio.run(main, clock=MockClock())


def check(setting: Setting, steps: Sequence[Step], *, mixed: bool = False) -> list[bool]:
    """Whether each wait was an error, which must be so just when it could never end.

    Where some waits of a job lend its slot, and others do not, it may depend on when the lenders
    are done. Such a cycle is found by then, and no later.
    """
    real = World(inside=True, mixed=mixed)
    told: list[set[int]] = []  # the waits that were errors in each step
    begun: list[int] = []  # how many waits had begun before each step

    async def act() -> None:
        for step in steps:
            before = set(real.errors)
            begun.append(len(real.ended))
            await real.take(step)
            told.append(real.errors - before)
        await real.release()
        left = [(job, job.blocked_by()) for job in real.lanes.jobs()]
        assert not left, f"{left} hang"
        assert mixed or real.errors == set().union(*told)

    live(setting, real, act)
    for last, now in enumerate(told):

        def left_without(failed: set[int], last: int = last) -> set[int]:
            """The waits that never end after that step, if these are errors in it."""
            trial = World(inside=False, mixed=mixed)

            async def try_it() -> None:
                for index, step in enumerate(steps[: last + 1]):
                    errors = failed if index == last else told[index]
                    await trial.take(step, fails=begun[index] in errors)
                    for number in sorted(errors - {begun[index]}):
                        await trial.fail(number)
                await trial.release()

            live(setting, trial, try_it)
            return trial.stuck()

        stuck = left_without(set())
        assert now <= stuck, (last, now, stuck, told)
        if stuck and not mixed:
            assert left_without(now) == set(), (last, now, stuck, told)
    return [number in real.errors for number in range(len(real.ended))]


settings_of_lanes = st.builds(
    Setting,
    concurrency=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    max_waiting=st.tuples(*[st.sampled_from([INF, INF, 0, 1, 2])] * 2),
    session_concurrency=st.integers(1, 2),
    session_max_waiting=st.sampled_from([INF, INF, 0, 1]),
    session_rate=st.sampled_from([False, False, True]),
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


@settings(max_examples=examples(60))
@given(st.random_module(), settings_of_lanes, any_steps)
def test_a_wait_is_an_error_just_if_nothing_could_ever_end_it(
    random_module: random.Random, setting: Setting, steps: list[Step]
) -> None:
    check(setting, steps)


@settings(max_examples=examples(40))
@given(st.random_module(), settings_of_lanes, any_steps)
def test_where_some_waits_lend_and_others_do_not_no_error_is_wrong_and_nothing_hangs(
    random_module: random.Random, setting: Setting, steps: list[Step]
) -> None:
    check(setting, steps, mixed=True)


def test_the_trial_itself_finds_both_kinds() -> None:
    submit, run = Step("submit"), Step("run")
    assert check(Setting(), [submit, run]) == [True]
    assert check(Setting(concurrency=(2, 1)), [submit, run]) == [False]
    assert check(Setting(), [submit, attrs.evolve(run, lends=True)]) == [False]
