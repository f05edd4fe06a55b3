"""Bodies that outlive their cancellation: what instruments are told of them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Steps
from trio_lanes import Job, LaneConfig, LaneInstrument, Lanes, current_job, open_lanes


class Overdue(LaneInstrument):
    """Notes which jobs were overdue, when that was told, and for how long they had been."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float]] = []

    def job_overdue(self, job: Job[Any], since: float) -> None:
        self.told.append((job.name, trio.current_time(), since))


class Waits(LaneInstrument):
    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        raise AssertionError  # no job waits


async def shielded(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)


async def test_a_body_that_outlives_its_cancellation_is_told_of_once(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(shielded, 60, name="slow")
        await trio.sleep(5)
        job.cancel()
        await trio.sleep(1)
        job.cancel()  # it counts from the first
        await job.wait_done()
    assert overdue.told == [("slow", 8.0, 3.0)]


async def test_ten_seconds_are_overdue_unless_the_lane_says_otherwise(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    async with open_lanes(instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 11, name="slow").cancel()
        lanes.submit_nowait(shielded, 9, name="fast").cancel()
    assert overdue.told == [("slow", 10.0, 10.0)]


async def test_a_body_that_ends_in_time_is_not_overdue(autojump_clock: MockClock) -> None:
    overdue = Overdue()
    config = LaneConfig(concurrency=4, overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        jobs = [
            lanes.submit_nowait(shielded, 2),
            lanes.submit_nowait(trio.sleep_forever),
            lanes.submit_nowait(shielded, 2, timeout=1),
            lanes.submit_nowait(trio.sleep, 20),
        ]
        await wait_all_tasks_blocked()
        for job in jobs[:2]:
            job.cancel()
    assert overdue.told == []
    assert trio.current_time() == 20.0


async def test_a_job_that_waits_is_never_overdue(autojump_clock: MockClock) -> None:
    overdue = Overdue()
    async with open_lanes({"main": 0}, instruments=[overdue]) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep_forever) for _ in range(3)]
        jobs[0].cancel()
        lanes.clear()
        await trio.sleep(100)
    assert overdue.told == []


async def test_a_timeout_counts_as_a_cancellation(autojump_clock: MockClock) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 60, name="slow", timeout=5)
    assert overdue.told == [("slow", 8.0, 3.0)]


async def test_a_deadline_counts_from_when_it_was_over_also_if_a_cancel_follows(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(shielded, 60, name="slow", timeout=5)
        await trio.sleep(7)
        job.cancel()
    assert overdue.told == [("slow", 8.0, 3.0)]


async def test_a_cancel_counts_from_when_it_was_called_also_if_a_deadline_follows(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(shielded, 60, name="slow", timeout=5)
        await trio.sleep(4)
        job.cancel()
    assert overdue.told == [("slow", 7.0, 3.0)]


async def test_an_idle_timeout_counts_from_the_last_progress(autojump_clock: MockClock) -> None:
    async def gets_on() -> None:
        job = current_job()
        assert job is not None
        for _ in range(10):
            await trio.sleep(1)
            job.progress()
        await shielded(60)

    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(gets_on, name="slow", idle_timeout=5, timeout=40)
    assert overdue.told == [("slow", 18.0, 3.0)]


async def test_progress_after_the_idle_timeout_comes_too_late(autojump_clock: MockClock) -> None:
    async def gets_on_too_late() -> None:
        job = current_job()
        assert job is not None
        with trio.CancelScope(shield=True):
            for _ in range(7):
                await trio.sleep(1)
                if trio.current_time() > 2:
                    job.progress()
        await trio.sleep_forever()

    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(gets_on_too_late, name="late", idle_timeout=2, timeout=8)
    assert overdue.told == [("late", 5.0, 3.0)]
    assert "idle_timeout" in str(job.exception)
    assert trio.current_time() == 7.0


async def test_a_job_without_its_slot_is_not_idle_and_is_watched_again_with_it(
    autojump_clock: MockClock,
) -> None:
    async def lends(seconds: float) -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(20)
        await shielded(seconds)

    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(lends, 60, name="slow", idle_timeout=5)
    assert overdue.told == [("slow", 28.0, 3.0)]


async def test_a_job_that_was_cancelled_without_its_slot_is_told_of_once(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
        await shielded(60)

    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(lends, name="slow", timeout=100)
        await trio.sleep(1)
        job.cancel()
    assert overdue.told == [("slow", 4.0, 3.0)]


async def test_a_body_that_was_reset_is_overdue_although_its_job_has_settled(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 60, name="slow")
        waiting = lanes.submit_nowait(shielded, 1, name="next")
        await trio.sleep(5)
        assert lanes.reset() == 1
        await waiting.wait()
        assert overdue.told == []
    assert overdue.told == [("slow", 8.0, 3.0)]


async def test_a_reset_reports_a_body_that_was_cancelled_before_no_second_time(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        job = lanes.submit_nowait(shielded, 60, name="slow")
        await wait_all_tasks_blocked()
        job.cancel()
        await trio.sleep(5)
        lanes.reset()
    assert overdue.told == [("slow", 3.0, 3.0)]


async def test_a_job_that_was_reset_before_it_began_has_no_body_to_wait_for(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    async with open_lanes({"main": 1}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 60)
        assert lanes.reset() == 1
        await trio.sleep(100)
    assert overdue.told == []


async def test_a_job_that_is_cancelled_before_it_began_is_watched(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    async with open_lanes({"main": 1}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 60, name="slow").cancel()
    assert overdue.told == [("slow", 10.0, 10.0)]


@pytest.mark.parametrize("how", ["scope", "exception", "failure", "base"])
async def test_the_end_of_the_lanes_counts_as_a_cancellation(
    autojump_clock: MockClock, how: str
) -> None:
    class Stop(BaseException):
        pass

    async def fails(error: BaseException) -> None:
        raise error

    async def end(lanes: Lanes, scope: trio.CancelScope) -> None:
        if how == "scope":
            scope.cancel()
        elif how == "exception":
            raise ValueError
        elif how == "failure":
            lanes.start_soon(fails, ValueError())
        else:
            lanes.submit_nowait(fails, Stop())
        await trio.sleep_forever()

    overdue = Overdue()
    config = LaneConfig(concurrency=3, overdue_after=3.0)
    try:
        with trio.CancelScope() as scope:
            async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
                lanes.submit_nowait(shielded, 60, name="slow")
                job = lanes.submit_nowait(shielded, 60, name="cancelled")
                await trio.sleep(1)
                job.cancel()
                await trio.sleep(1)
                await end(lanes, scope)
    except BaseExceptionGroup:
        pass
    assert overdue.told == [("cancelled", 4.0, 3.0), ("slow", 5.0, 3.0)]
    assert trio.current_time() == 60.0


async def test_in_lanes_that_were_cancelled_a_later_cancel_counts_no_more(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    config = LaneConfig(overdue_after=3.0)
    with trio.CancelScope() as scope:
        async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
            job = lanes.submit_nowait(shielded, 60, name="slow")
            await wait_all_tasks_blocked()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await shielded(1)
                job.cancel()
                await shielded(1)
    assert overdue.told == [("slow", 4.0, 3.0)]


async def test_a_body_counts_from_the_end_of_the_lanes_also_if_a_cancel_follows(
    autojump_clock: MockClock,
) -> None:
    overdue = Overdue()
    jobs: list[Job[None]] = []

    async def main() -> None:
        config = LaneConfig(overdue_after=3.0)
        async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
            jobs.append(lanes.submit_nowait(shielded, 60, name="slow"))
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(main)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
        await shielded(2)
        jobs[0].cancel()
    assert overdue.told == [("slow", 4.0, 3.0)]


async def test_a_drain_that_cancels_counts_and_spares_the_job_that_drains(
    autojump_clock: MockClock,
) -> None:
    async def drains() -> None:
        await lanes.drain(grace=1)
        await trio.sleep(30)

    overdue = Overdue()
    config = LaneConfig(concurrency=2, overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 20, name="slow")
        lanes.submit_nowait(drains, name="drains")
    assert overdue.told == [("slow", 4.0, 3.0)]


async def test_an_infinite_overdue_after_is_never_over(autojump_clock: MockClock) -> None:
    overdue = Overdue()
    config = LaneConfig(concurrency=2, overdue_after=float("inf"))
    async with open_lanes({"main": config}, instruments=[overdue]) as lanes:
        lanes.submit_nowait(shielded, 60, timeout=1)
        lanes.submit_nowait(shielded, 60).cancel()
    assert overdue.told == []


async def test_each_lane_has_its_own_overdue_after(autojump_clock: MockClock) -> None:
    overdue = Overdue()
    config = {"main": LaneConfig(overdue_after=1), "cron": LaneConfig(overdue_after=2)}
    async with open_lanes(config, instruments=[overdue]) as lanes:
        for lane in config:
            lanes.submit_nowait(shielded, 60, lane=lane, name=lane).cancel()
    assert overdue.told == [("main", 1.0, 1.0), ("cron", 2.0, 2.0)]


async def test_an_overdue_job_may_be_reset_and_replaced_by_the_hook_that_is_told(
    autojump_clock: MockClock,
) -> None:
    class GiveUp(LaneInstrument):
        def job_overdue(self, job: Job[Any], since: float) -> None:
            lanes.reset(job.lane)
            done.append(lanes.submit_nowait(trio.sleep, 1))

    done: list[Job[Any]] = []
    async with open_lanes({"main": 1}, instruments=[GiveUp()]) as lanes:
        lanes.submit_nowait(shielded, 60).cancel()
        await trio.sleep(20)
    assert [job.finished_at for job in done] == [11.0]


async def test_a_watched_job_is_let_go_when_its_body_ends(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}, instruments=[Overdue()]) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, timeout=1000)
        gone = weakref.ref(job)
        await job.wait()
        del job
        await wait_all_tasks_blocked()
        gc.collect()
        assert gone() is None


async def test_without_an_instrument_lanes_know_the_jobs_that_are_overdue(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=9, overdue_after=3.0)
    async with open_lanes({"main": config, "cron": config}) as lanes:
        main = lanes.lane("main")
        late = lanes.submit_nowait(shielded, 50, timeout=10)
        lanes.submit_nowait(shielded, 12, timeout=10)  # it ends in time
        soon = lanes.submit_nowait(shielded, 30)
        lanes.submit_nowait(shielded, 90, lane="cron", timeout=200)
        await trio.sleep(8)
        soon.cancel()
        for seconds, expected in (
            (2.9, []),
            (0.2, [soon]),
            (2.0, [soon, late]),
            (15.0, [soon, late]),
            (5.0, [late]),
            (20.0, []),
        ):
            await trio.sleep(seconds)
            assert main.overdue(9) == expected
            assert main.overdue(1) == expected[:1]
            assert main.statistics().overdue == len(expected)
            assert lanes.lane("cron").statistics().overdue == 0
        with pytest.raises(ValueError, match="n must not be negative"):
            main.overdue(-1)


async def test_a_job_that_was_reset_is_abandoned_and_no_longer_overdue(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(overdue_after=3.0)}) as lanes:
        lanes.submit_nowait(shielded, 60).cancel()
        await trio.sleep(5)
        assert lanes.statistics().lanes["main"].overdue == 1
        lanes.reset()
        lanes.submit_nowait(shielded, 60)
        await wait_all_tasks_blocked()
        lanes.reset()  # then it is overdue only when it was abandoned
        await trio.sleep(5)
        statistics = lanes.statistics().lanes["main"]
        assert (statistics.overdue, statistics.abandoned) == (0, 2)


async def test_an_instrument_that_is_added_late_is_told_of_the_jobs_that_are_overdue(
    autojump_clock: MockClock,
) -> None:
    first, late = Overdue(), Overdue()
    config = LaneConfig(concurrency=3, overdue_after=3.0)
    async with open_lanes({"main": config}, instruments=[first]) as lanes:
        lanes.submit_nowait(shielded, 30, name="timeout", timeout=1)
        job = lanes.submit_nowait(shielded, 30, name="cancelled")
        lanes.submit_nowait(shielded, 30, name="later", timeout=10)
        await trio.sleep(2)
        job.cancel()
        await trio.sleep(6)
        lanes.add_instrument(late)
        assert late.told == [("timeout", 8.0, 7.0), ("cancelled", 8.0, 6.0)]
        lanes.add_instrument(Waits())
    assert late.told[2:] == [("later", 13.0, 3.0)] == first.told[2:]
    assert len(first.told) == 3


async def test_the_log_has_one_line_for_the_bodies_of_a_lane_that_become_overdue_together(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"main": LaneConfig(concurrency=9, overdue_after=3.0), "cron": 1}
    async with open_lanes(config) as lanes:
        for name in ("a", "b", "c"):
            lanes.submit_nowait(shielded, 60, name=name, timeout=2)
        lanes.submit_nowait(shielded, 60, name="d", lane="cron").cancel()
    asked = "s after it was asked to stop"
    assert [record.getMessage() for record in caplog.records] == [
        f"lane 'main': the body of job 1 'a' (and of 2 others) goes on 3.0 {asked}",
        f"lane 'cron': the body of job 4 'd' goes on 10.0 {asked}",
    ]


async def test_bodies_that_end_in_time_leave_no_timer_and_wake_no_task(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9}) as lanes:
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 1, timeout=10)
        lanes.submit_nowait(trio.sleep, 9).cancel()
        await trio.sleep(2)
        with Steps() as steps:
            await trio.sleep(100)
        assert steps.count <= 2  # this task's own
        job = lanes.submit_nowait(shielded, 50, timeout=10)
        await trio.sleep(25)
        job.cancel()
        with Steps() as steps:
            await trio.sleep(20)
        assert steps.count <= 2  # of an overdue body, all is said
