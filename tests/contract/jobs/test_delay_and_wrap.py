"""Jobs with a delay, functions around bodies, and the methods of a running job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    Job,
    JobState,
    JobTimeoutError,
    LaneClearedError,
    LaneConfig,
    QueueTimeoutError,
    RateLimit,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


async def no_op() -> str:
    return "done"


async def test_a_delayed_job_takes_its_place_when_it_is_due(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        order: list[str] = []

        async def note(name: str) -> None:
            order.append(name)
            await trio.sleep(2)

        late = lanes.submit_nowait(note, "late", delay=3, session="a")
        lanes.submit_nowait(note, "first", session="a")
        lanes.submit_nowait(note, "second", session="a")
        lanes.submit_nowait(note, "direct", delay=1)
        assert (late.state, lanes.statistics().waiting) == (JobState.WAITING, 3)
        assert lanes.statistics().oldest_wait == 0
        await lanes.wait_idle()
        assert order == ["first", "direct", "second", "late"]


async def test_a_delayed_job_can_be_cleared_cancelled_and_reprioritised_before_it_is_due(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        cleared = lanes.submit_nowait(no_op, delay=5, session="a")
        assert lanes.clear("session:a") == 1
        with pytest.raises(LaneClearedError):
            await cleared.wait()
        cancelled = lanes.submit_nowait(no_op, delay=5)
        assert cancelled.cancel()
        raised = lanes.submit_nowait(no_op, delay=1)
        raised.priority = 7
        assert (await raised.wait(), raised.priority) == ("done", 7)
        assert lanes.statistics().waiting == 0


async def test_its_clocks_begin_when_it_is_due(autojump_clock: MockClock) -> None:
    waited: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 100)
        job = lanes.submit_nowait(
            no_op,
            delay=10,
            queue_timeout=5,
            warn_after=3,
            on_wait=lambda job, seconds: waited.append(seconds),
        )
        await trio.sleep(12)
        assert lanes.statistics().oldest_wait == pytest.approx(2)
        with pytest.raises(QueueTimeoutError):
            await job.wait()
        assert trio.current_time() == pytest.approx(15)
        assert waited == [pytest.approx(3)]


async def test_a_delayed_job_that_may_not_wait_starts_when_due_or_never(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        good = lanes.submit_nowait(no_op, delay=1, queue_timeout=0)
        assert await good.wait() == "done"
        lanes.submit_nowait(trio.sleep, 10)
        bad = lanes.submit_nowait(no_op, delay=1, queue_timeout=0)
        with pytest.raises(QueueTimeoutError):
            await bad.wait()


async def test_lanes_and_sessions_wrap_the_bodies_of_their_jobs(autojump_clock: MockClock) -> None:
    told: list[str] = []

    def wrap(name: str) -> Callable[[Job[Any], Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def around(job: Job[Any], body: Callable[[], Awaitable[Any]]) -> Any:
            assert current_job() is job
            told.append(f"{name} in")
            try:
                return await body()
            finally:
                told.append(f"{name} out")

        return around

    sessions = LaneConfig(wrap=wrap("session"))
    async with open_lanes({"main": LaneConfig(wrap=wrap("lane"))}, sessions=sessions) as lanes:
        assert await lanes.run(no_op, session="a") == "done"
        assert told == ["session in", "lane in", "lane out", "session out"]
        told.clear()
        assert await lanes.run(no_op) == "done"
        assert told == ["lane in", "lane out"]


async def test_a_wrap_may_call_the_body_again(autojump_clock: MockClock) -> None:
    tries: list[float] = []

    async def flaky() -> str:
        tries.append(trio.current_time())
        if len(tries) < 3:
            raise OSError
        return "at last"

    async def retry(job: Job[Any], body: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await body()
            except OSError:
                await trio.sleep(1)

    async with open_lanes({"main": LaneConfig(wrap=retry)}) as lanes:
        assert await lanes.run(flaky) == "at last"
    assert len(tries) == 3


async def test_idle_timeout_fires_without_progress_and_is_renewed_by_it(
    autojump_clock: MockClock,
) -> None:
    async def works(times: int) -> None:
        job = current_job()
        assert job is not None
        for _ in range(times):
            await trio.sleep(2)
            job.progress()
        await trio.sleep(100)

    async with open_lanes({"main": 1}) as lanes:
        began = trio.current_time()
        with pytest.raises(JobTimeoutError) as caught:
            await lanes.run(works, 5, idle_timeout=3)
        assert (caught.value.kind, trio.current_time() - began) == ("idle_timeout", 13)
        with pytest.raises(JobTimeoutError) as caught:
            await lanes.run(works, 50, idle_timeout=3, timeout=7)
        assert (caught.value.kind, trio.current_time() - began) == ("timeout", 20)


async def test_a_job_knows_its_meta_its_owner_and_the_job_that_submitted_it(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> Job[str]:
        return lanes.submit_nowait(no_op, session="b", owner=("team", 1), meta={"a": 1})

    async with open_lanes() as lanes:
        outer = lanes.submit_nowait(parent, session="a")
        inner = await outer.wait()
        assert (outer.parent, inner.parent) == (None, outer)
        assert (outer.owner, inner.owner) == ("a", ("team", 1))
        assert (outer.meta, inner.meta) == (None, {"a": 1})
        assert await inner.wait() == "done"


async def test_the_frames_of_a_blocked_body_can_be_seen(autojump_clock: MockClock) -> None:
    async def inner() -> None:
        await trio.sleep(1)

    async def outer() -> None:
        await inner()

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(outer)
        assert list(job.iter_await_frames()) == []
        await trio.sleep(0.5)
        names = [frame.f_code.co_name for frame, _ in job.iter_await_frames()]
        assert names[:2] == ["outer", "inner"]
        await job.wait()
        assert list(job.iter_await_frames()) == []


@pytest.mark.trio_only("the fixture is a nursery of Trio's")
async def test_wait_closing_returns_when_the_lanes_close(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    closed: list[float] = []

    async def server() -> None:
        await lanes.wait_closing()
        closed.append(trio.current_time())

    async with open_lanes() as lanes:
        nursery.start_soon(server)
        await trio.sleep(3)
        lanes.close()
        await trio.sleep(3)
        assert closed == [pytest.approx(3)]
        await lanes.wait_closing()


@pytest.mark.parametrize("held_by", ["delay", "pause", "rate"])
async def test_shielded_code_waits_for_jobs_that_become_due_after_the_lanes_were_cancelled(
    held_by: str, autojump_clock: MockClock
) -> None:
    main = LaneConfig(rate=RateLimit(1, 5, algorithm="sliding") if held_by == "rate" else ())
    with trio.CancelScope() as around:
        async with open_lanes({"main": main}) as lanes:
            with trio.CancelScope(shield=True), trio.fail_after(100):
                if held_by == "pause":
                    lanes.pause_for("main", 5)
                elif held_by == "rate":
                    await lanes.run(no_op)
                job = lanes.submit_nowait(no_op, delay=5 if held_by == "delay" else 0)
                await trio.sleep(1)
                around.cancel()
                assert await job.wait() == "done"
                assert trio.current_time() == 5
            await trio.lowlevel.checkpoint()
    assert around.cancelled_caught
