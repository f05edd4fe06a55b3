"""The task of a job that blocked runs the next job only if the job left nothing behind in it."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tricycle import TreeVar
from trio.lowlevel import Task, current_task
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import BodyError, this_job
from trio_lanes import JobState, Lanes, open_lanes
from trio_lanes._flow import workers

block = trio.lowlevel.checkpoint

variable: ContextVar[str] = ContextVar("variable", default="not set")
tree_variable: TreeVar[str] = TreeVar("tree_variable", default="not set")


class Tasks(trio.abc.Instrument):
    """Counts tasks, and numbers them without a reference to any."""

    def __init__(self) -> None:
        self.spawned = 0
        self.steps = 0
        self._numbers: dict[int, int] = {}

    def task_spawned(self, task: Task) -> None:
        self.spawned += 1
        self._numbers[id(task)] = self.spawned

    def before_task_step(self, task: Task) -> None:
        self.steps += 1

    def mine(self) -> int:
        """The number of the current task."""
        return self._numbers[id(current_task())]


class OwnedLock:
    """A lock that a task may take again, as applications write them."""

    def __init__(self) -> None:
        self.owner: Task | None = None
        self._free = trio.Semaphore(1)

    async def acquire(self) -> None:
        if self.owner is not current_task():
            await self._free.acquire()
            self.owner = current_task()


class Keeper(trio.abc.Instrument):
    """An instrument that keeps the task in which it is made, at its next step."""

    def __init__(self, keep: Callable[[Task], object]) -> None:
        self.keep = keep
        self.id = id(current_task())

    def before_task_step(self, task: Task) -> None:
        if id(task) == self.id:
            self.keep(task)


class World:
    """What jobs share, and leave things in."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.kept: list[Any] = []
        self.locks = [trio.Lock(), trio.StrictFIFOLock()]
        self.owned = OwnedLock()
        self.condition = trio.Condition()
        self.semaphore = trio.Semaphore(100)
        self.limiter = trio.CapacityLimiter(100)
        self.by_task: weakref.WeakKeyDictionary[Task, object] = weakref.WeakKeyDictionary()
        self.ready = trio.Event()
        self.stop = threading.Event()

    def find_nothing(self) -> None:
        """Assert that the current task has nothing of any job before it."""
        me = current_task()
        assert trio.current_effective_deadline() == math.inf
        assert me.child_nurseries == []
        assert me.custom_sleep_data is None
        assert variable.get() == "of the submitter"
        assert all(thing is not me for thing in self.kept)
        assert me not in self.by_task
        assert all(type(ref) is not weakref.ref or ref() is not me for ref in self.kept)
        assert all(lock.statistics().owner is not me for lock in self.locks)
        assert self.condition.statistics().lock_statistics.owner is not me
        assert self.owned.owner is not me
        assert me not in self.limiter.statistics().borrowers

    async def work(self) -> int:
        """A job that finds a task like a new one, and then works in it; the number of its task."""
        self.find_nothing()
        number = self.tasks.mine()
        await block()
        self.find_nothing()
        assert current_task().name == this_job().name
        with trio.move_on_after(1) as scope:
            await block()
            async with trio.Lock():
                await block()
        assert not scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            assert current_task().child_nurseries == [nursery]
            nursery.start_soon(block)
        try:
            self.limiter.acquire_nowait()
        finally:
            self.limiter.release()
        self.find_nothing()
        return number


async def a_lock(world: World) -> None:
    await world.locks[0].acquire()


async def a_fifo_lock(world: World) -> None:
    await world.locks[1].acquire()


async def a_lock_of_the_application(world: World) -> None:
    await world.owned.acquire()


async def a_condition(world: World) -> None:
    await world.condition.acquire()


async def a_token(world: World) -> None:
    await world.limiter.acquire()


async def its_task(world: World) -> None:
    world.kept.append(current_task())


async def its_task_as_its_value(world: World) -> Task:
    return current_task()


async def a_weak_reference(world: World) -> None:
    world.kept.append(weakref.ref(current_task()))


async def an_entry_by_its_task(world: World) -> None:
    world.by_task[current_task()] = "left"


async def its_task_in_a_context_variable(world: World) -> None:
    holder: ContextVar[Task] = ContextVar("holder")
    holder.set(current_task())


async def a_tree_variable(world: World) -> None:
    tree_variable.set("left")
    world.kept.append(current_task().context)


async def its_task_with_an_instrument(world: World, keep: Callable[[Any, Task], object]) -> None:
    keeper = Keeper(partial(keep, collection := weakref.WeakSet()))
    world.kept.append(collection)
    trio.lowlevel.add_instrument(keeper)
    await block()
    trio.lowlevel.remove_instrument(keeper)


async def its_task_in_a_list_of_an_instrument(world: World) -> None:
    await its_task_with_an_instrument(world, lambda _, task: world.kept.append(task))


async def its_task_in_a_weak_set_of_an_instrument(world: World) -> None:
    await its_task_with_an_instrument(world, lambda tasks, task: tasks.add(task))


async def its_task_in_a_weak_dictionary_of_an_instrument(world: World) -> None:
    await its_task_with_an_instrument(
        world, lambda _, task: world.by_task.__setitem__(task, "left")
    )


async def a_call_with_its_task_to_come(world: World) -> None:
    token = trio.lowlevel.current_trio_token()
    token.run_sync_soon(world.kept.append, current_task())


async def its_own_cancellation(world: World) -> None:
    this_job().cancel()


async def its_cancellation_swallowed(world: World) -> None:
    this_job().cancel()
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        pass


async def a_semaphore(world: World) -> None:
    await world.semaphore.acquire()


async def an_open_channel(world: World) -> None:
    send, receive = trio.open_memory_channel[int](1)
    await send.send(1)
    world.kept += [send, receive]


async def a_context_variable(world: World) -> None:
    variable.set("left")


async def another_name(world: World) -> None:
    current_task().name = "left"


async def custom_sleep_data(world: World) -> None:
    current_task().custom_sleep_data = "left"


async def a_generator(world: World) -> None:
    async def generate() -> AsyncGenerator[int, None]:
        yield 1
        yield 2

    generator = generate()
    await anext(generator)
    world.kept.append(generator)


async def nothing(world: World) -> None:
    pass


REFER = [
    a_lock,
    a_fifo_lock,
    a_lock_of_the_application,
    a_condition,
    a_token,
    its_task,
    its_task_as_its_value,
    a_weak_reference,
    an_entry_by_its_task,
    its_task_in_a_context_variable,
    a_tree_variable,
    its_task_in_a_list_of_an_instrument,
    its_task_in_a_weak_set_of_an_instrument,
    its_task_in_a_weak_dictionary_of_an_instrument,
    a_call_with_its_task_to_come,
    its_own_cancellation,
    its_cancellation_swallowed,
]
REFER_NOT = [
    a_semaphore,
    an_open_channel,
    a_context_variable,
    another_name,
    custom_sleep_data,
    a_generator,
    nothing,
]

Leave = Callable[[World], Awaitable[object]]


@pytest.fixture(params=["reuse", "no reuse"])
def reuses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether tasks are reused in this test."""
    reuses = request.param == "reuse"
    if reuses and not workers.REUSES_TASKS:
        reuses = False  # counts of references cannot be trusted here
    monkeypatch.setattr(workers, "REUSES_TASKS", reuses)
    return reuses


@pytest.fixture
def world(autojump_clock: MockClock) -> World:
    return World(Tasks())


async def blocked(world: World, leave: Leave) -> int:
    """Block, and then leave something behind."""
    await block()
    world.kept.append([await leave(world)])
    return world.tasks.mine()


def submit_blocked(lanes: Lanes, world: World, leave: Leave) -> Any:
    variable.set("of the submitter")
    return lanes.submit_nowait(blocked, world, leave)


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("leave", [*REFER, *REFER_NOT], ids=lambda leave: leave.__name__)
async def test_a_job_that_blocked_leaves_nothing_behind_for_the_next_job(
    leave: Leave, reuses: bool, world: World
) -> None:
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leave)
        job = lanes.submit_nowait(world.work)
        last = lanes.submit_nowait(world.work)
        task = await culprit.wait()
        successors = await job.wait()
        assert (successors == task) is (reuses and leave in REFER_NOT)
        assert (await last.wait() == successors) is reuses
        assert culprit.state is JobState.SUCCEEDED
    world.stop.set()


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("kind", [weakref.ref, weakref.proxy])
async def test_a_weak_reference_that_was_there_before_hides_none_that_a_job_leaves(
    kind: Callable[[Task], object], reuses: bool, world: World
) -> None:
    class Refers(trio.abc.Instrument):
        def task_spawned(self, task: Task) -> None:
            refs.append(kind(task))

    async def leaves(world: World) -> None:
        world.kept.append(kind(current_task()))

    refs: list[object] = []
    trio.lowlevel.add_instrument(Refers())
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leaves)
        job = lanes.submit_nowait(world.work)
        last = lanes.submit_nowait(world.work)
        assert await job.wait() != await culprit.wait()
        assert (await last.wait() == await job.wait()) is reuses


@pytest.mark.many_seeds(3)
async def test_what_an_instrument_lets_go_of_hides_nothing_that_a_job_leaves(
    reuses: bool, world: World
) -> None:
    class Queues(trio.abc.Instrument):
        def task_spawned(self, task: Task) -> None:
            queue.append(task)

    async def lets_go(world: World) -> None:
        queue.clear()

    async def leaves(world: World) -> None:
        queue.clear()
        await a_lock(world)

    queue: list[Task] = []
    trio.lowlevel.add_instrument(Queues())
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        submit_blocked(lanes, world, lets_go)
        culprit = submit_blocked(lanes, world, leaves)
        assert await lanes.run(world.work) != await culprit.wait()


@pytest.mark.parametrize("lock", [0, 1])
async def test_a_lock_that_a_job_left_is_held_by_no_later_job(
    lock: int, reuses: bool, world: World
) -> None:
    async def next_one() -> str:
        await block()
        try:
            async with world.locks[lock]:
                return "got it"
        except trio.BrokenResourceError:
            return "broken"

    async with open_lanes({"main": 1}) as lanes:
        submit_blocked(lanes, world, [a_lock, a_fifo_lock][lock])
        jobs = [lanes.submit_nowait(next_one) for _ in range(2)]
        assert [await job.wait() for job in jobs] == ["broken", "broken"]


async def test_a_lock_of_the_application_that_a_job_left_makes_later_jobs_wait(
    reuses: bool, world: World, autojump_clock: MockClock
) -> None:
    async def next_one() -> bool:
        await block()
        with trio.move_on_after(1) as scope:
            await world.owned.acquire()
        return scope.cancelled_caught

    async with open_lanes({"main": 1}) as lanes:
        submit_blocked(lanes, world, a_lock_of_the_application)
        jobs = [lanes.submit_nowait(next_one) for _ in range(2)]
        assert [await job.wait() for job in jobs] == [True, True]


@pytest.mark.many_seeds(3)
async def test_an_open_cancel_scope_is_the_failure_of_the_job_that_left_it(
    reuses: bool, world: World
) -> None:
    async def leaves(world: World) -> None:
        world.kept.append(trio.move_on_after(0).__enter__())

    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leaves)
        job = lanes.submit_nowait(world.work)
        await job.wait()
        with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
            await culprit.wait()


async def finds_no_nursery() -> None:
    assert current_task().child_nurseries == []
    await block()


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("children", [0, 2])
async def test_an_open_nursery_is_its_own_failure_and_no_later_job_finds_it(
    children: int, reuses: bool, world: World
) -> None:
    async def leaves(world: World) -> None:
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        world.kept.append(manager)
        for _ in range(children):
            nursery.start_soon(trio.sleep_forever)

    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leaves)
        await lanes.run(finds_no_nursery)
    assert isinstance(culprit.exception, RuntimeError)


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("inside", ["scope", "nursery"])
async def test_a_generator_abandoned_inside_a_scope_affects_no_other_job(
    inside: str, reuses: bool, world: World
) -> None:
    async def in_a_scope() -> AsyncGenerator[int, None]:
        with trio.move_on_after(0):
            yield 1

    async def in_a_nursery() -> AsyncGenerator[int, None]:
        async with trio.open_nursery():
            yield 1

    async def leaves(world: World) -> None:
        generator = in_a_scope() if inside == "scope" else in_a_nursery()
        await anext(generator)
        world.kept.append(generator)

    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leaves)
        next_one = world.work if inside == "scope" else finds_no_nursery
        jobs = [lanes.submit_nowait(next_one) for _ in range(2)]
        await lanes.wait_idle()
    assert isinstance(culprit.exception, RuntimeError)
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 2


@pytest.mark.real_processes
async def test_a_thread_that_a_job_abandoned_affects_no_other_job(reuses: bool) -> None:
    world = World(Tasks())

    async def leaves(world: World) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(started.wait)
                scope_of_thread.append(scope)
                await trio.to_thread.run_sync(wait, abandon_on_cancel=True)

    def wait() -> None:
        trio.from_thread.run_sync(scope_of_thread[0].cancel)
        trio.from_thread.run_sync(started.set)
        world.stop.wait(10)
        ended.set()

    started, ended = trio.Event(), threading.Event()
    scope_of_thread: list[trio.CancelScope] = []
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, leaves)
        jobs = [lanes.submit_nowait(world.work) for _ in range(3)]
        for job in jobs:
            await job.wait()
        assert culprit.state is JobState.SUCCEEDED
        assert not ended.is_set()
        world.stop.set()
        await trio.to_thread.run_sync(ended.wait, 10)
        await lanes.run(world.work)


async def returns_at(deadline: float) -> float:
    with trio.CancelScope(shield=True):
        await trio.sleep(deadline)
    await trio.lowlevel.cancel_shielded_checkpoint()
    return trio.current_effective_deadline()


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
async def test_a_timeout_is_over_with_its_job(
    limit: str, reuses: bool, world: World, autojump_clock: MockClock
) -> None:
    trio.lowlevel.add_instrument(world.tasks)
    variable.set("of the submitter")
    async with open_lanes({"main": 1}) as lanes:
        inside = lanes.submit_nowait(blocked, world, nothing, **{limit: 1})
        after_it = lanes.submit_nowait(world.work)
        past = lanes.submit_nowait(returns_at, 2, **{limit: 1})
        after_past = lanes.submit_nowait(world.work)
        assert (await after_it.wait() == await inside.wait()) is reuses
        await after_past.wait()
        assert await past.wait() == -math.inf


async def test_a_task_that_ran_a_body_which_raised_runs_no_other(
    reuses: bool, world: World
) -> None:
    async def raises(world: World) -> None:
        numbers.append(world.tasks.mine())
        raise BodyError

    numbers: list[int] = []
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 1}) as lanes:
        culprit = submit_blocked(lanes, world, raises)
        job = lanes.submit_nowait(world.work)
        assert await job.wait() not in numbers
        with pytest.raises(BodyError):
            await culprit.wait()


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("leave", [nothing, a_lock, its_task])
async def test_a_job_that_was_cancelled_then_reset_and_returned_leaves_no_cancellation(
    leave: Leave, blocks: bool, reuses: bool, world: World
) -> None:
    async def body() -> None:
        if blocks:
            await block()
            await leave(world)
        this_job().cancel()
        lanes.reset()

    trio.lowlevel.add_instrument(world.tasks)
    variable.set("of the submitter")
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(body)
        jobs = [lanes.submit_nowait(world.work) for _ in range(2)]
        for job in jobs:
            await job.wait()


# ---- the task and the scope are reused


async def test_tasks_are_reused_after_a_job_that_was_reset_and_returned(
    reuses: bool, world: World
) -> None:
    async def body() -> None:
        await block()
        lanes.reset()

    trio.lowlevel.add_instrument(world.tasks)
    variable.set("of the submitter")
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(body)
        await lanes.run(world.work)
        jobs = [lanes.submit_nowait(world.work) for _ in range(10)]
        numbers = [await job.wait() for job in jobs]
    assert len({*numbers}) == (1 if reuses else 10)


async def test_blocking_jobs_that_leave_nothing_behind_share_the_tasks_of_their_lane(
    reuses: bool, world: World
) -> None:
    async def waits() -> None:
        await block()
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            await block()

    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 10}) as lanes:
        for _ in range(1_000):
            lanes.start_soon(waits)
        await lanes.wait_idle()
        assert 10 <= world.tasks.spawned <= 15 if reuses else 1_000 <= world.tasks.spawned <= 1_050
        await wait_all_tasks_blocked()
        nursery = current_task().child_nurseries[-1]  # that of the lanes
        assert not nursery.child_tasks  # surplus workers have ended


async def test_each_blocking_job_has_a_task_of_its_own_where_none_is_reused(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(workers, "REUSES_TASKS", False)
    trio.lowlevel.add_instrument(world.tasks)
    async with open_lanes({"main": 3}) as lanes:
        jobs = [submit_blocked(lanes, world, nothing) for _ in range(100)]
        numbers = [await job.wait() for job in jobs]
    assert len({*numbers}) == 100


async def test_an_instrument_that_knew_a_task_before_its_jobs_does_not_keep_it_from_reuse(
    autojump_clock: MockClock,
) -> None:
    class Knows(trio.abc.Instrument):
        def task_spawned(self, task: Task) -> None:
            known.add(task)
            weakly_known.add(task)

    known: set[Task] = set()
    weakly_known: weakref.WeakSet[Task] = weakref.WeakSet()
    trio.lowlevel.add_instrument(Knows())
    async with open_lanes({"main": 10}) as lanes:
        for _ in range(100):
            lanes.start_soon(block)
        await lanes.wait_idle()
    assert len(known) <= 15 if workers.REUSES_TASKS else len(known) >= 100


@pytest.mark.many_seeds(3)
async def test_jobs_that_block_and_jobs_that_do_not_let_other_tasks_run(
    reuses: bool, world: World
) -> None:
    async def watch() -> None:
        while True:
            passes.append(0)
            await block()

    async def body(n: int) -> None:
        passes[-1] += 1
        if n % 3 == 0:
            await block()
            passes[-1] += 1

    passes = [0]
    async with open_lanes({"main": 20}) as lanes, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for n in range(3_000):
            lanes.start_soon(body, n)
        await lanes.wait_idle()
        nursery.cancel_scope.cancel()
    assert sum(passes) == 3_000 + 1_000
    assert max(passes) <= 1_000


async def test_a_running_job_shows_its_frames_and_its_name_in_a_reused_task(
    reuses: bool, world: World
) -> None:
    async def waits_here() -> str:
        gates.append(trio.Event())
        await gates[-1].wait()
        return current_task().name

    gates: list[trio.Event] = []
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(waits_here, name=f"job {n}") for n in range(3)]
        for n, job in enumerate(jobs):
            await wait_all_tasks_blocked()
            names = [frame.f_code.co_name for frame, _ in job.iter_await_frames()]
            assert names[:2] == ["waits_here", "wait"]
            nursery = current_task().child_nurseries[-1]  # that of the lanes
            assert job.name in {task.name for task in nursery.child_tasks}
            gates[-1].set()
            assert await job.wait() == f"job {n}"
            assert [*job.iter_await_frames()] == []


async def test_the_task_of_a_job_has_its_name_before_it_blocks(reuses: bool, world: World) -> None:
    names: list[str] = []

    async def body(*, blocks: bool) -> None:
        names.append(current_task().name)
        current_task().name = "another name"
        if blocks:
            await trio.lowlevel.checkpoint()

    async with open_lanes({"main": 1}) as lanes:
        for n in range(6):
            lanes.submit_nowait(partial(body, blocks=n % 3 == 1), name=f"job {n}")
    assert names == [f"job {n}" for n in range(6)]


# ---- all of it at once, by chance


async def raises_what(world: World) -> None:
    raise BodyError


async def an_open_scope(world: World) -> None:
    world.kept.append(trio.move_on_after(0).__enter__())


async def a_reset(world: World) -> None:
    this_job().cancel()
    world.kept.append("reset")


EVERYTHING = [*REFER, *REFER_NOT, raises_what, an_open_scope, a_reset]
BY_CHANCE = [leave for leave in EVERYTHING if leave not in (*REFER[:4], a_generator)]

plans = st.lists(
    st.tuples(
        st.sampled_from(BY_CHANCE),
        st.sampled_from([None, "alice", "bob"]),
        st.sampled_from([None, 50.0]),  # a timeout that does not pass
        st.integers(min_value=0, max_value=2),  # how often it blocks before, and after
    ),
    min_size=1,
    max_size=40,
)


@given(st.random_module(), plans, st.booleans())
def test_each_job_finds_a_clean_task_after_any_mix_of_jobs(
    random: object, plan: list[tuple[Leave, str | None, float | None, int]], reuses: bool
) -> None:
    async def body(world: World, leave: Leave, limited: bool, times: int) -> None:
        if limited:
            assert trio.current_effective_deadline() > trio.current_time() + 40
        else:
            world.find_nothing()
        with trio.CancelScope():
            for _ in range(times):
                await block()
        async with trio.Lock():  # blocks in any case
            pass
        variable.set("left")
        begun.append(leave)
        await leave(world)

    async def main() -> None:
        variable.set("of the submitter")
        world = World(Tasks())
        trio.lowlevel.add_instrument(world.tasks)
        async with open_lanes({"main": 3}) as lanes:
            jobs = []
            for leave, session, timeout, times in plan:
                limited = {} if timeout is None else {"timeout": timeout}
                jobs.append(
                    lanes.submit_nowait(
                        partial(body, world, leave, timeout is not None, times),
                        session=session,
                        **limited,
                    )
                )
            await lanes.wait_idle()
        for job in jobs:
            assert not isinstance(job.exception, AssertionError), job.exception
            assert job.done
        assert len(begun) == len(plan)

    begun: list[Leave] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "REUSES_TASKS", reuses and workers.REUSES_TASKS)
        trio.run(main, clock=MockClock(autojump_threshold=0))
