"""Root causes and health where a store changes meanwhile, or an instance is gone without a word."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.programs import PATIENCE
from trio_lanes import LaneConfig
from trio_lanes.durable import (
    DurableBlocker,
    MemoryStore,
    SqliteStore,
    Submission,
    open_durable_lanes,
)
from trio_lanes.durable.acts.inspection import BlockersOf


async def waits(payload: Any) -> None:
    await trio.sleep(1000)


async def test_a_job_that_ends_during_the_search_is_no_cause(autojump_clock: MockClock) -> None:
    class Fast(MemoryStore):
        ended: int = 0

        async def look(self, question: Any) -> Any:
            gone = isinstance(question, BlockersOf) and question.id == self.ended
            return None if gone else await super().look(question)

    store = Fast()
    async with open_durable_lanes(store, {"waits": waits}, {"main": 1}, grace=0) as lanes:
        jobs = [await lanes.submit("waits", session="s") for _ in range(2)]
        jobs.append(await lanes.submit("waits"))
        await wait_all_tasks_blocked()
        store.ended = jobs[0].id
        assert await lanes.root_causes(jobs[1].id) == ()
        (cause,) = await lanes.root_causes(jobs[2].id)
        assert cause.root == 'slots of "main": all 1 in use'
        store.ended = jobs[2].id
        await lanes.submit("waits")
        assert [problem.kind for problem in await lanes.health()] == []


async def test_a_lane_whose_first_job_may_start_lets_the_others_wait_for_their_turn(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with (
        open_durable_lanes(store, {"waits": waits}) as idle,
        open_durable_lanes(store.another(), {}, worker=False) as lanes,
    ):
        await idle.drain()
        jobs = await lanes.submit_many([Submission(name="waits") for _ in range(1002)])
        first, (second,), (last,) = [await lanes.root_causes(jobs[n].id) for n in (0, 1, -1)]
        assert (first, second.kind) == ((), "order")
        assert second.root == 'its turn in "main", 1 before it'
        assert last.root == 'its turn in "main", 1,000 or more before it'
        await lanes.clear("main")


async def test_an_instance_without_a_lease_whose_process_has_ended_does_not_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", synchronous="NORMAL", patience=PATIENCE)
    async with open_durable_lanes(
        store, {"waits": waits}, {"main": 9}, capacity=1, grace=0
    ) as lanes:
        first = await lanes.submit("waits", session="s")
        behind = await lanes.submit("waits", session="s")
        while await lanes.running("s") is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        other = await lanes.submit("waits")

        def kill(pid: int, signal: int) -> None:
            raise ProcessLookupError

        (cause,) = await lanes.root_causes(other.id)
        assert (cause.kind, cause.root.endswith(" runs 1")) == ("capacity", True)
        monkeypatch.setattr(os, "kill", kill)
        (cause,) = await lanes.root_causes(other.id)
        assert (cause.kind, cause.advice) == ("instance", "start a worker")
        (cause,) = await lanes.root_causes(behind.id)
        assert (cause.kind, cause.jobs) == ("gone", (first.id,))


async def test_of_many_instances_without_room_three_are_named(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        lanes = await stack.enter_async_context(
            open_durable_lanes(store, {"waits": waits}, {"main": 9}, capacity=1, grace=0)
        )
        for _ in range(3):
            other = open_durable_lanes(
                store.another(), {"waits": waits}, {"main": 9}, capacity=1, grace=0
            )
            await stack.enter_async_context(other)
        jobs = [await lanes.submit("waits") for _ in range(5)]
        await trio.sleep(10)
        (cause,) = await lanes.root_causes(jobs[-1].id)
        assert cause.root.startswith("room of an instance: ")
        assert cause.root.count(" runs 1, ") == 3
        assert cause.root.endswith(" runs 1, ...")


async def test_with_aging_those_that_go_later_are_not_counted_as_before_a_job(
    autojump_clock: MockClock,
) -> None:
    main = LaneConfig(concurrency=1, aging=1.0)
    async with open_durable_lanes(
        MemoryStore(), {"waits": waits}, {"main": main}, grace=0
    ) as lanes:
        await lanes.submit("waits")
        await trio.sleep(1)
        await lanes.submit("waits", priority=-1)
        job = await lanes.submit("waits")
        await lanes.submit("waits", priority=1)
        await trio.sleep(100)
        await lanes.submit("waits")  # behind the job of the lower priority, which has waited longer
        (order,) = [
            blocker for blocker in await lanes.blocked_by(job.id) if blocker.kind == "order"
        ]
        assert order.before == 1


def test_a_reason_is_a_sentence_about_the_job() -> None:
    by_job = DurableBlocker("quota", "openai", 7)
    assert str(by_job) == "it runs, and waits for the quota openai, behind job 7"
    by_task = DurableBlocker("lock", "index", None)
    assert (
        str(by_task) == "it runs, and waits for the lock index, which a task outside of a job has"
    )
    assert str(DurableBlocker("dead", "session:s", 3)) == "job 3 is dead and keeps session:s closed"
