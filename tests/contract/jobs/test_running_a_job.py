"""What a running job sees: its context, its own task, and plain Trio."""

import contextvars
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import pytest
import trio
from tricycle import TreeVar
from trio.lowlevel import Task
from trio.testing import (
    MockClock,
)

from tests.support.bodies import returns_at_once
from trio_lanes import Job, JobState, LaneInstrument, current_job, open_lanes

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
tree_user: TreeVar[str] = TreeVar("tree_user", default="nobody")

blocking_or_not = pytest.mark.parametrize("blocks", [False, True], ids=["at once", "blocking"])


# ---- context


@blocking_or_not
async def test_a_job_runs_in_a_copy_of_the_context_of_its_submission(
    blocks: bool, autojump_clock: MockClock
) -> None:
    async def body() -> list[str]:
        seen = [user.get()]
        user.set("changed in the body")
        if blocks:
            await trio.sleep(1)
        seen.append(user.get())
        return seen

    async with open_lanes({"main": 1}) as lanes:
        user.set("alice")
        jobs = [lanes.submit_nowait(body), lanes.submit_nowait(body, session="s")]
        user.set("bob")
        jobs.append(lanes.submit_nowait(body))
        user.set("carol")
        entered = await lanes.submit(body)
        seen = [await job.wait() for job in [*jobs, entered]]
        assert seen == [
            [name, "changed in the body"] for name in ("alice", "alice", "bob", "carol")
        ]
        assert user.get() == "carol"


async def test_the_task_of_a_job_has_the_jobs_context_after_its_first_step(
    autojump_clock: MockClock,
) -> None:
    async def body() -> tuple[str, str]:
        user.set("before")
        await trio.sleep(1)
        context = trio.lowlevel.current_task().context
        before = context[user]
        user.set("after")
        await trio.sleep(1)
        return before, context[user]

    async with open_lanes() as lanes:
        assert await lanes.run(body) == ("before", "after")


@blocking_or_not
async def test_the_task_of_a_job_has_the_jobs_context_from_its_first_step(
    blocks: bool, autojump_clock: MockClock
) -> None:
    async def body() -> list[object]:
        user.set("alice")
        seen: list[object] = [trio.lowlevel.current_task().context[user]]
        if blocks:
            await trio.sleep(1)
        seen.append(trio.lowlevel.current_task().context[user])
        return seen

    async def next_body() -> object:
        return trio.lowlevel.current_task().context.get(user)

    async with open_lanes({"main": 1}) as lanes:
        job, next_job = lanes.submit_nowait(body), lanes.submit_nowait(next_body)
        assert await job.wait() == ["alice", "alice"]
        assert await next_job.wait() is None


@blocking_or_not
async def test_a_tree_variable_that_a_job_sets_lasts_as_long_as_the_job(
    blocks: bool, autojump_clock: MockClock
) -> None:
    async def body(name: str) -> list[str]:
        seen = [tree_user.get()]
        with tree_user.being(name):
            seen.append(tree_user.get())
            if blocks:
                await trio.sleep(1)
            seen.append(tree_user.get())
        seen.append(tree_user.get())
        return seen

    async def sets(name: str) -> None:
        tree_user.set(name)
        if blocks:
            await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(body, "alice"), lanes.submit_nowait(body, "bob")]
        assert await jobs[0].wait() == ["nobody", "alice", "alice", "nobody"]
        assert await jobs[1].wait() == ["nobody", "bob", "bob", "nobody"]
        lanes.submit_nowait(sets, "carol")
        assert (await lanes.run(body, "dave"))[0] == "nobody"
        assert tree_user.get() == "nobody"


@blocking_or_not
async def test_job_finished_is_told_while_the_task_has_the_jobs_context(
    blocks: bool, autojump_clock: MockClock
) -> None:
    class Sees(LaneInstrument):
        def job_finished(self, job: Job[object]) -> None:
            seen.append(trio.lowlevel.current_task().context[user])

    async def body(*, fails: bool) -> None:
        user.set("alice")
        if blocks:
            await trio.sleep(1)
        if fails:
            raise ValueError("failed")

    seen: list[str] = []
    async with open_lanes({"main": 1}, instruments=[Sees()]) as lanes:
        await lanes.run(partial(body, fails=False))
        with pytest.raises(ValueError, match="failed"):
            await lanes.run(partial(body, fails=True))
    assert seen == ["alice", "alice"]


async def test_children_and_threads_of_a_job_inherit_its_context(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def child() -> None:
        seen.append(user.get())

    async def body() -> None:
        user.set("the job's")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        seen.append(await trio.to_thread.run_sync(user.get))

    async with open_lanes() as lanes:
        await lanes.run(body)
    assert seen == ["the job's", "the job's"]


# ---- scopes and tasks


async def test_scopes_around_the_submission_are_not_around_the_job(
    autojump_clock: MockClock,
) -> None:
    deadlines: list[float] = []

    async def body() -> None:
        deadlines.append(trio.current_effective_deadline())
        await trio.sleep(10)

    async with open_lanes({"main": 2}) as lanes:
        with trio.move_on_after(1) as scope:
            jobs = [lanes.submit_nowait(body), await lanes.submit(body, timeout=50)]
            await trio.sleep_forever()
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            jobs.append(lanes.submit_nowait(body))
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        for job in jobs:
            await job.wait()
        assert deadlines == [float("inf"), 50, float("inf")]


async def test_jobs_that_block_have_a_task_each_and_no_other_job_after_them(
    autojump_clock: MockClock,
) -> None:
    tasks: list[Task] = []

    async def body() -> None:
        tasks.append(trio.lowlevel.current_task())
        await trio.sleep(1)
        assert tasks.count(trio.lowlevel.current_task()) == 1

    async with open_lanes({"main": 3}) as lanes:
        for n in range(12):
            lanes.submit_nowait(body, session=str(n % 4))
    assert len(set(tasks)) == 12


async def test_the_task_of_a_job_that_blocks_is_named_like_the_job(
    autojump_clock: MockClock,
) -> None:
    async def body() -> str:
        await trio.sleep(1)
        return trio.lowlevel.current_task().name

    async with open_lanes() as lanes:
        assert await lanes.run(body, name="alice's answer") == "alice's answer"
        assert await lanes.run(body) == body.__qualname__


async def test_the_await_frames_of_a_blocked_job_are_the_users_frames(
    autojump_clock: MockClock,
) -> None:
    tasks: list[Task] = []

    async def inner() -> None:
        await trio.sleep(1)

    async def outer() -> None:
        tasks.append(trio.lowlevel.current_task())
        for _ in range(2):
            await inner()

    def names() -> list[str]:
        (task,) = tasks
        return [frame.f_code.co_name for frame, _ in task.iter_await_frames()]

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(outer)
        assert list(job.iter_await_frames()) == []
        for moment in (0.5, 1.5):  # in its first step, and in a later one
            await trio.sleep_until(moment)
            found = names()
            assert found.index("outer") + 1 == found.index("inner") < found.index("sleep")
            assert "wait_task_rescheduled" in found[found.index("sleep") :]
            from_handle = [frame.f_code.co_name for frame, _ in job.iter_await_frames()]
            assert from_handle == found[found.index("outer") :]
        await trio.sleep_until(2.5)
        assert names() == list(job.iter_await_frames()) == []


if sys.version_info < (3, 13):  # on later ones stackscope 0.2 sees no nursery at all
    import stackscope

    @pytest.mark.parametrize("leaving", [False, True])
    async def test_stackscope_shows_the_frames_of_jobs_under_the_block_of_their_lanes(
        leaving: bool, autojump_clock: MockClock
    ) -> None:
        async def inner() -> None:
            await trio.sleep(5)

        async def outer() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(inner)

        async def opens() -> None:
            async with open_lanes({"main": 2}) as lanes:
                lanes.start_soon(outer, session="alice", name="first")
                lanes.start_soon(inner, name="second")
                if not leaving:
                    await trio.sleep(5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(opens)
            await trio.sleep(1)
            (task,) = nursery.child_tasks
            shown = stackscope.extract(task, recurse_child_tasks=True)
            assert shown.error is None
            lines = str(shown)
        # `inner` runs in one job, and in a child task of the other.
        assert lines.count(" outer in ") == 1
        assert lines.count(" inner in ") == 2
        assert lines.index("_opened") < lines.index("<Task 'first'") < lines.index(" outer in ")


async def test_current_job_is_that_of_the_task_or_of_the_nearest_task_above_it(
    autojump_clock: MockClock,
) -> None:
    seen: dict[str, Job[object] | None] = {}

    def in_thread() -> None:
        seen["in a thread"] = current_job()
        seen["from a thread"] = trio.from_thread.run_sync(current_job)

    async def child(name: str) -> None:
        seen[name] = current_job()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grandchild, name + ", below")

    async def grandchild(name: str) -> None:
        await trio.sleep(1)
        seen[name] = current_job()

    async def body() -> None:
        seen["body"] = current_job()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, "child")
        await trio.to_thread.run_sync(in_thread)
        nested = lanes.submit_nowait(nested_body)
        seen["nested handle"] = nested
        await nested.wait()
        seen["body again"] = current_job()

    async def nested_body() -> None:
        seen["nested"] = current_job()

    assert current_job() is None
    async with open_lanes() as lanes, trio.open_nursery() as nursery:
        assert current_job() is None
        nursery.start_soon(child, "outside")
        job = lanes.submit_nowait(body)
        await job.wait()
        nested = seen["nested handle"]
        assert nested is not None
        assert seen == {
            "body": job, "child": job, "child, below": job, "body again": job,
            "in a thread": None, "from a thread": job,
            "nested handle": nested, "nested": nested,
            "outside": None, "outside, below": None,
        }  # fmt: skip
        assert nested.parent is job
        assert job.parent is None


def test_current_job_outside_of_trio_is_none() -> None:
    assert current_job() is None


# ---- plain Trio inside


async def test_a_job_may_open_nurseries_and_start_tasks_in_them(autojump_clock: MockClock) -> None:
    async def service(task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started("ready")
        await trio.sleep_forever()

    async def body() -> str:
        async with trio.open_nursery() as nursery:
            ready: str = await nursery.start(service)
            nursery.cancel_scope.cancel()
        return ready

    async with open_lanes() as lanes:
        assert await lanes.run(body) == "ready"


async def test_a_job_may_use_threads_and_these_may_call_back(autojump_clock: MockClock) -> None:
    async def asks_back() -> str:
        await trio.lowlevel.checkpoint()
        return user.get()

    def in_thread() -> tuple[str, str, bool]:
        user.set("set in the thread")
        inner = trio.from_thread.run(asks_back)
        job = trio.from_thread.run_sync(lambda: lanes.submit_nowait(returns_at_once))
        value = trio.from_thread.run(job.wait)
        return inner, value, threading.current_thread() is threading.main_thread()

    async def body() -> tuple[str, str, bool]:
        return await trio.to_thread.run_sync(in_thread)

    async with open_lanes() as lanes:
        assert await lanes.run(body) == ("set in the thread", "value", False)


async def test_a_thread_of_a_job_submits_as_that_job(autojump_clock: MockClock) -> None:
    children: list[Job[str]] = []

    def in_thread() -> None:
        children.append(trio.from_thread.run_sync(lambda: lanes.submit_nowait(returns_at_once)))

    async def body() -> None:
        await trio.to_thread.run_sync(in_thread)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        lanes.close()  # from now on only jobs may submit
        await job.wait()
        (child,) = children
        assert child.parent is job
        assert await child.wait() == "value"


async def test_a_cancelled_job_tells_its_thread(autojump_clock: MockClock) -> None:
    told = threading.Event()

    def in_thread() -> None:
        while True:
            try:
                trio.from_thread.check_cancelled()
            except trio.Cancelled:
                told.set()
                raise
            told.wait(0.001)

    async def body() -> None:
        await trio.to_thread.run_sync(in_thread)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await trio.testing.wait_all_tasks_blocked()
        job.cancel()
        await job.wait_done()
        assert job.state is JobState.CANCELLED
    assert told.is_set()


async def test_a_job_may_run_a_process() -> None:
    async def body() -> bytes:
        code = "print('hello from below')"
        done = await trio.run_process([sys.executable, "-S", "-c", code], capture_stdout=True)
        assert isinstance(done.stdout, bytes)
        return done.stdout.strip()

    async with open_lanes() as lanes:
        assert await lanes.run(body) == b"hello from below"


async def test_a_job_may_use_async_generators_and_context_managers(
    autojump_clock: MockClock,
) -> None:
    closed: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for n in range(10):
                await trio.sleep(1)
                yield n
        finally:
            await trio.lowlevel.checkpoint()
            closed.append("generator")

    @asynccontextmanager
    async def limited() -> AsyncIterator[None]:
        with trio.fail_after(100):
            yield
        closed.append("manager")

    async def body() -> int:
        total = 0
        async with limited(), aclosing(numbers()) as generator:
            async for n in generator:
                total += n
                if n == 3:
                    break
        return total

    async with open_lanes() as lanes:
        assert await lanes.run(body) == 6
    assert closed == ["generator", "manager"]
