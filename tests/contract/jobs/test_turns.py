"""Checkpoints, and turns: jobs that never block leave some for other tasks."""

import math

import pytest
import trio
from trio.testing import (
    MockClock,
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from tests.support.bodies import returns_at_once
from trio_lanes import Job, LaneConfig, current_job, open_lanes


async def test_async_methods_are_checkpoints_and_sync_methods_are_not(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for view in (lanes, lanes.lane("main"), lanes.session("alice")):
            with assert_checkpoints():
                await view.run(returns_at_once)
            with assert_checkpoints():
                job = await view.submit(returns_at_once)
            with assert_checkpoints():
                await job.wait()
            for _ in range(2):
                with assert_checkpoints():
                    await job.wait()
                with assert_checkpoints():
                    await job.wait_started()
                with assert_checkpoints():
                    await job.wait_done()
            with assert_no_checkpoints():
                job = view.submit_nowait(returns_at_once)
                view.start_soon(returns_at_once)
                job.cancel()
                view.pause()
                view.resume()
                view.clear()
        with assert_no_checkpoints():
            lanes.reset()
            lanes.configure({"main": 2})
            lanes.jobs()
            lanes.statistics()
            current_job()
        for name in (None, "main", "session:alice"):
            with assert_checkpoints():
                await lanes.wait_active(name)
            with assert_checkpoints():
                await lanes.wait_idle(name)
            with assert_checkpoints():
                await lanes.wait_empty(name)
            with assert_checkpoints():
                await lanes.wait_room(1, name)
        with assert_no_checkpoints():
            lanes.close()


class Passes(trio.abc.Instrument):
    """How many jobs were called between two passes of Trio's scheduler, at most."""

    def __init__(self) -> None:
        self.most = 0
        self._called = 0

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self._called)
        self._called = 0

    async def job(self) -> None:
        self._called += 1


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("width", [1, 100, float("inf")])
async def test_jobs_that_never_block_let_other_tasks_have_their_turn(
    width: float, autojump_clock: MockClock
) -> None:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    turns = 0
    async with open_lanes({"main": width}, sessions=LaneConfig(concurrency=5)) as lanes:
        for n in range(3000):
            lanes.submit_nowait(passes.job, session=str(n % 7) if n % 2 else None)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def other_task() -> None:
                    nonlocal turns
                    while True:
                        turns += 1
                        await trio.lowlevel.checkpoint()

                nursery.start_soon(other_task)
                await lanes.wait_idle()
                scope.cancel()
    trio.lowlevel.remove_instrument(passes)
    assert 1 <= passes.most <= 1000
    assert turns >= 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with a timeout", "past it", "cancelled", "leaving a scope open"])
async def test_jobs_that_never_block_let_other_tasks_run_also_when_they_spoil_their_scopes(
    how: str, mock_clock: MockClock
) -> None:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    scopes: list[trio.CancelScope] = []

    async def body() -> None:
        await passes.job()
        job = current_job()
        assert job is not None
        if how == "past it":
            mock_clock.jump(2)
            assert job.cancel_called
        elif how == "cancelled":
            job.cancel()
        elif how == "leaving a scope open":
            scopes.append(trio.CancelScope().__enter__())

    timeout = 1 if how in ("with a timeout", "past it") else math.inf
    async with open_lanes({"main": math.inf}) as lanes:
        jobs = [lanes.submit_nowait(body, timeout=timeout) for _ in range(1500)]
        await lanes.wait_idle()
    trio.lowlevel.remove_instrument(passes)
    assert 1 <= passes.most <= 1000
    ended = [job.exception is None for job in jobs]
    assert ended == [how != "leaving a scope open"] * 1500


async def test_jobs_that_submit_each_other_without_blocking_let_others_have_their_turn_too(
    autojump_clock: MockClock,
) -> None:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    stop = False

    async def body(n: int) -> None:
        await passes.job()
        if not stop:
            lanes.submit_nowait(body, n)

    async with open_lanes({"main": 3, "cron": 1}) as lanes:
        for n in range(3):
            lanes.submit_nowait(body, n)
        lanes.submit_nowait(body, 3, lane="cron", session="alice")
        for _ in range(40):
            await trio.lowlevel.checkpoint()
        stop = True
    trio.lowlevel.remove_instrument(passes)
    assert 1 <= passes.most <= 1000


@pytest.mark.slow
async def test_very_long_chains_of_jobs_are_no_recursion(autojump_clock: MockClock) -> None:
    class Chain:
        """An instrument that submits the next job when a job has ended."""

        left = 1500

        def job_finished(self, job: Job[object]) -> None:
            if self.left:
                self.left -= 1
                lanes.submit_nowait(returns_at_once, session="alice")

    chain = Chain()
    async with open_lanes({"main": 1}, instruments=[chain]) as lanes:
        lanes.submit_nowait(returns_at_once, session="alice")
        await lanes.wait_idle()
        assert chain.left == 0
        for _ in range(1500):
            lanes.submit_nowait(trio.sleep_forever, session="alice")
        assert lanes.clear() == 1499
        assert lanes.reset() == 1
        await wait_all_tasks_blocked()
