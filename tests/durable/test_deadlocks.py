"""Waits of handlers for other jobs that can never end, and waits that only look like it."""

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import LaneDeadlockError, LaneGroup
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    SqliteStore,
    current_job,
    open_durable_lanes,
)

ONCE = RetryPolicy(max_attempts=1)


class Family:
    """Handlers: a parent that submits a child and waits for it, as its payload says."""

    lanes: DurableLanes

    def __init__(self) -> None:
        self.all_run = trio.Event()
        self.expected = 1
        self.begun = 0

    async def child(self, payload: Any) -> str:
        return "child"

    async def parent(self, payload: Any) -> Any:
        self.begun += 1
        if self.begun == self.expected:
            self.all_run.set()
        await self.all_run.wait()
        run = current_job()
        assert run is not None
        how = dict(payload)
        lends = how.pop("lends", False)
        child = await self.lanes.submit("child", **how)
        if not lends:
            return await child.wait()
        async with run.yield_slot():
            return await child.wait()

    def open(self, store: Any, lanes: Any = None, **options: Any) -> Any:
        handlers = {"child": self.child, "parent": self.parent}
        return open_durable_lanes(
            store, handlers, lanes or {"main": 4, "one": 1}, retry=ONCE, grace=0, **options
        )


@pytest.mark.parametrize("sqlite", [False, True])
@pytest.mark.parametrize(
    ("parent", "child", "ends"),
    [
        ({"session": "a"}, {"session": "a"}, False),
        ({"session": "a"}, {"session": "a", "lends": True}, False),
        ({"session": "a"}, {"session": "a", "lane": "one"}, False),
        ({"session": "a"}, {"session": "b"}, True),
        ({"session": "a"}, {}, True),
        ({"lane": "one"}, {"lane": "one"}, False),
        ({"lane": "one"}, {"lane": "one", "lends": True}, True),
        ({"lane": "one"}, {"lane": "main"}, True),
        ({"lane": "main"}, {"lane": "main"}, True),
    ],
)
async def test_a_wait_for_a_job_that_needs_the_slot_or_session_of_its_waiter_is_refused_at_once(
    parent: Any, child: Any, ends: bool, sqlite: bool, tmp_path: Path
) -> None:
    family = Family()
    store = SqliteStore(tmp_path / "jobs.db") if sqlite else MemoryStore()
    async with family.open(store) as family.lanes:
        job = await family.lanes.submit("parent", child, **parent)
        if ends:
            assert await job.wait() == "child"
            return
        with pytest.raises(DurableJobError) as caught:
            await job.wait()
        error = caught.value.__cause__
        assert isinstance(error, LaneDeadlockError)
        held = [] if child.get("lends") else [f"a slot of {parent.get('lane', 'main')!r}"]
        held += ["its session"] if "session" in parent else []
        assert f"parent {job.id} holds {' and '.join(held)} and waits for child" in str(error)


async def test_runs_that_hold_all_slots_and_wait_for_one_more_are_refused_by_the_last(
    autojump_clock: MockClock,
) -> None:
    family = Family()
    family.expected = 3
    async with family.open(MemoryStore(), {"main": 3}) as family.lanes:
        jobs = [await family.lanes.submit("parent", {}) for _ in range(3)]
        results: list[Any] = []
        for job in jobs:
            try:
                results.append(await job.wait())
            except DurableJobError as error:
                results.append(error.type)
        assert sorted(results) == ["child", "child", "trio_lanes.LaneDeadlockError"]


async def test_slots_of_a_group_are_counted_over_its_lanes() -> None:
    family = Family()
    groups = {"g": LaneGroup(["main", "one"], concurrency=1)}
    async with family.open(MemoryStore(), groups=groups) as family.lanes:
        with pytest.raises(DurableJobError, match="LaneDeadlockError"):
            await (await family.lanes.submit("parent", {"lane": "one"})).wait()


async def test_the_capacity_of_the_only_instance_is_a_limit_too(tmp_path: Path) -> None:
    family = Family()
    store = SqliteStore(tmp_path / "jobs.db")
    async with family.open(store, {"main": math.inf}, capacity=1) as family.lanes:
        with pytest.raises(DurableJobError, match="LaneDeadlockError"):
            await (await family.lanes.submit("parent", {})).wait()


async def test_jobs_that_wait_for_each_other_are_refused() -> None:
    async def waits(payload: Any) -> Any:
        ids.append(1)
        if len(ids) == 2:
            both.set()
        await both.wait()
        return await lanes.job(jobs[payload].id).wait()

    ids: list[int] = []
    both, jobs = trio.Event(), {}
    async with open_durable_lanes(MemoryStore(), {"waits": waits}, retry=ONCE) as lanes:
        jobs["a"] = await lanes.submit("waits", "b")
        jobs["b"] = await lanes.submit("waits", "a")
        for job in jobs.values():  # one with that error, the other with the end of that job
            with pytest.raises(DurableJobError, match="LaneDeadlockError"):
                await job.wait()


async def test_a_job_that_waits_for_itself_is_refused() -> None:
    async def waits(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        await lanes.job(run.id).wait()

    async with open_durable_lanes(MemoryStore(), {"waits": waits}, retry=ONCE) as lanes:
        with pytest.raises(DurableJobError, match="LaneDeadlockError"):
            await (await lanes.submit("waits")).wait()


async def test_a_wait_for_a_job_that_runs_on_another_instance_is_let_be(
    autojump_clock: MockClock,
) -> None:
    async def sleeps(payload: Any) -> str:
        await trio.sleep(5)
        return "elsewhere"

    async def waits(payload: Any) -> Any:
        return await here.job(payload).wait()

    memory = MemoryStore()
    async with (
        open_durable_lanes(memory, {"waits": waits}, {"main": 2}, retry=ONCE) as here,
        open_durable_lanes(memory.another(), {"sleeps": sleeps}, {"main": 2}) as there,
    ):
        job = await there.submit("sleeps")
        await trio.sleep(1)
        assert await (await here.submit("waits", job.id)).wait() == "elsewhere"


async def test_a_wait_for_a_job_that_has_just_ended_is_no_deadlock() -> None:
    class Held:
        """A store whose handlers hear of ends late."""

        def __init__(self) -> None:
            self.memory = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.memory, name)

        async def wait(self, id: int) -> Any:
            ended = await self.memory.wait(id)
            if current_job() is not None:
                await heard.wait()
            return ended

    async def quick(payload: Any) -> str:
        return "quick"

    async def waits(payload: Any) -> Any:
        return await (await lanes.submit("quick")).wait()

    async def gate(payload: Any) -> None:
        await opened.wait()

    heard, opened = trio.Event(), trio.Event()
    store: Any = Held()
    handlers = {"quick": quick, "waits": waits, "gate": gate}
    async with open_durable_lanes(store, handlers, {"main": 2}, retry=ONCE) as lanes:
        await lanes.submit("gate")
        await wait_all_tasks_blocked()
        one = await lanes.submit("waits")  # its quick job waits for the slot of the gate
        await wait_all_tasks_blocked()
        opened.set()
        await wait_all_tasks_blocked()
        two = await lanes.submit("waits")
        await wait_all_tasks_blocked()
        heard.set()
        assert [await one.wait(), await two.wait()] == ["quick", "quick"]


async def test_a_job_that_has_ended_is_waited_for_inside_of_a_run(
    autojump_clock: MockClock,
) -> None:
    async def outer(id: Any) -> Any:
        return await lanes.job(id).wait()

    async def echo(payload: Any) -> Any:
        return payload

    handlers = {"outer": outer, "echo": echo}
    async with open_durable_lanes(MemoryStore(), handlers) as lanes:
        first = await lanes.submit("echo", "hello")
        await first.wait()
        assert await (await lanes.submit("outer", first.id)).wait() == "hello"
