"""Closing, draining, and leaving the block."""

import logging

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints
from trio.testing import wait_all_tasks_blocked as settle_down

from trio_lanes import (
    DrainReport,
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneResetError,
    Lanes,
    LanesClosedError,
    current_job,
    open_lanes,
)

from .bodies import (
    BodyError,
    cleans_up_shielded,
    never_ends,
    raises,
    returns,
    returns_in_spite_of_all,
)
from .track import Track


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "trio_lanes" and record.levelno == level
    ]


# ---- close


async def test_after_close_every_way_to_submit_is_refused_with_reason_and_retry_after(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.close("restarting", retry_after=30)
        lanes.close("another reason", retry_after=1)  # the first one stays
        for view in (lanes, lanes.lane("main"), lanes.session("alice")):
            with pytest.raises(LanesClosedError, match="restarting") as nowait:
                view.submit_nowait(returns)
            with pytest.raises(LanesClosedError) as start:
                view.start_soon(returns)
            with pytest.raises(LanesClosedError) as run:
                await view.run(returns)
            with pytest.raises(LanesClosedError) as submit:
                await view.submit(returns)
            for caught in (nowait, start, run, submit):
                assert caught.value.reason == "restarting"
                assert caught.value.retry_after == 30
        assert lanes.sessions() == []
        assert lanes.jobs() == []


async def test_close_lets_what_was_accepted_before_run_to_its_end(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for n in range(3):
            lanes.submit_nowait(track.sleep, n, session="alice" if n else None)
        lanes.close()
        await trio.sleep(10)
        assert track.ended == [0, 1, 2]


async def test_while_closing_a_running_job_may_submit_and_so_may_its_children(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:

        async def grandchild() -> object:
            return await lanes.run(track.sleep, "grandchild", session="alice")

        async def body() -> object:
            await trio.sleep(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lanes.run, track.sleep, "of a task below it")
            return await lanes.run(grandchild)

        async with trio.open_nursery() as nursery:
            job = lanes.submit_nowait(body)
            lanes.close()
            lanes.lane("main").concurrency = 3

            async def outsider() -> None:
                await trio.sleep(1.5)
                with pytest.raises(LanesClosedError):
                    lanes.submit_nowait(track.sleep, "from outside")

            nursery.start_soon(outsider)
            assert await job.wait() == "grandchild"
    assert track.ended == ["of a task below it", "grandchild"]


async def test_a_job_of_other_lanes_is_outside(autojump_clock: MockClock) -> None:
    async with open_lanes() as others, open_lanes() as lanes:
        lanes.close()

        async def body() -> None:
            lanes.submit_nowait(returns)

        with pytest.raises(LanesClosedError):
            await others.run(body)


async def test_a_job_that_was_reset_is_outside(autojump_clock: MockClock) -> None:
    refused: list[BaseException] = []
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            with pytest.raises(LanesClosedError) as caught:
                lanes.submit_nowait(returns)
            refused.append(caught.value)

        lanes.submit_nowait(body)
        await trio.sleep(1)
        lanes.reset()
        lanes.submit_nowait(trio.sleep, 5)  # other jobs may still submit
        lanes.close()
        await trio.sleep(3)
        assert len(refused) == 1


async def test_close_refuses_those_who_wait_for_room_unless_a_running_job_does(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    told: list[object] = []
    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes({"main": full, "cron": 1}) as lanes:

        async def outsider() -> None:
            with pytest.raises(LanesClosedError, match="why"):
                await lanes.run(track.sleep, "outsider")
            told.append(trio.current_time())

        async def insider() -> None:
            await lanes.run(track.sleep, "insider")

        lanes.submit_nowait(track.sleep, "first", 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outsider)
            await settle_down()
            lanes.submit_nowait(insider, lane="cron")
            await trio.sleep(1)
            lanes.close("why")
        assert told == [1]
    assert track.ended == ["first", "insider"]


async def test_those_of_other_lanes_jobs_who_wait_for_room_are_refused_too(
    autojump_clock: MockClock,
) -> None:
    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes() as others, open_lanes({"main": full}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        job = others.submit_nowait(lanes.run, returns)
        await trio.sleep(1)
        lanes.close()
        with pytest.raises(LanesClosedError):
            await job.wait()
        assert trio.current_time() == 1


async def test_refusing_very_many_submissions_logs_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.drain)
            await settle_down()
            for _ in range(10_000):
                with pytest.raises(LanesClosedError):
                    lanes.submit_nowait(returns)
    assert len(messages(caplog)) == 1
    assert "refus" in messages(caplog)[0]


# ---- drain


async def test_drain_waits_for_all_work_and_says_how_it_ended(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "before")
        await lanes.wait_idle()
        for n in range(3):
            lanes.submit_nowait(track.sleep, n)
        failing = lanes.submit_nowait(raises)
        assert await lanes.drain() == DrainReport(finished=4, cancelled=0, abandoned=0)
        assert trio.current_time() == 6
        assert isinstance(failing.exception, BodyError)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)


async def test_drain_with_a_grace_cancels_what_is_left_and_tells_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        quick = lanes.submit_nowait(trio.sleep, 1)
        running = [lanes.submit_nowait(body) for body in (never_ends, cleans_up_shielded)]
        waiting = [lanes.submit_nowait(returns, session=session) for session in (None, "alice")]
        assert await lanes.drain(grace=3) == DrainReport(finished=1, cancelled=4, abandoned=0)
        assert trio.current_time() == 4
        assert quick.state is JobState.SUCCEEDED
        for job in running:
            assert type(job.exception) is JobCancelledError
        for job in waiting:
            assert type(job.exception) is LanesClosedError
            assert job.started_at is None


async def test_drain_gives_up_what_outlives_its_cancellation(autojump_clock: MockClock) -> None:
    track = Track()

    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            await track.sleep("stuck", 20)

    async with open_lanes({"main": 3}) as lanes:
        jobs = [lanes.submit_nowait(body) for body in (stuck, never_ends, returns_in_spite_of_all)]
        report = await lanes.drain(grace=1, cancel_grace=5)
        assert report == DrainReport(finished=1, cancelled=1, abandoned=1)
        assert trio.current_time() == 6
        assert type(jobs[0].exception) is LaneResetError
        assert type(jobs[1].exception) is JobCancelledError
        assert await jobs[2].wait() == "value"
        assert lanes.statistics().abandoned == 1
    assert trio.current_time() == 20


async def test_drain_may_cancel_what_waits_at_once(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, "running")
        waiting = [lanes.submit_nowait(track.sleep, n, session="alice") for n in range(3)]
        report = await lanes.drain(waiting="cancel")
        assert report == DrainReport(finished=1, cancelled=3, abandoned=0)
        for job in waiting:
            assert type(job.exception) is LanesClosedError
    assert track.ended == ["running"]


async def test_during_a_drain_a_running_job_may_still_submit(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:

        async def body() -> None:
            await trio.sleep(1)
            await lanes.run(track.sleep, "child", lane="cron")

        lanes.submit_nowait(body)
        report = await lanes.drain(grace=10, waiting="cancel")
        assert report == DrainReport(finished=2, cancelled=0, abandoned=0)
    assert track.ended == ["child"]


async def test_after_the_grace_a_job_that_cleans_up_submits_nothing_more(
    autojump_clock: MockClock,
) -> None:
    refused: list[BaseException] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:

        async def body() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with pytest.raises(LanesClosedError) as caught:
                    lanes.submit_nowait(returns, lane="cron")
                refused.append(caught.value)

        lanes.submit_nowait(body)
        await lanes.drain(grace=1)
    assert len(refused) == 1


async def test_cancelling_a_drain_leaves_the_lanes_closed_and_the_work_running(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, n) for n in range(3)]
        with trio.move_on_after(0.5) as scope:
            await lanes.drain(grace=2)
        assert scope.cancelled_caught
        assert not any(job.cancel_called for job in jobs)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)
        assert await lanes.drain() == DrainReport(finished=3, cancelled=0, abandoned=0)
    assert track.ended == [0, 1, 2]


async def test_drain_inside_a_job_leaves_out_that_job_and_those_that_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1, "other": 1}) as lanes:
        reports: list[DrainReport] = []

        async def drains() -> None:
            reports.append(await lanes.drain(grace=5, cancel_grace=5))

        async def waits_for_it() -> None:
            await lanes.run(drains, lane="cron")

        job = lanes.submit_nowait(waits_for_it)
        other = lanes.submit_nowait(never_ends, lane="other")
        await job.wait()
        assert reports == [DrainReport(finished=0, cancelled=1, abandoned=0)]
        assert type(other.exception) is JobCancelledError
        assert trio.current_time() == 5


async def test_a_drain_of_nothing_is_a_checkpoint_and_reports_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        for grace in (float("inf"), 0, 5):
            with assert_checkpoints():
                assert await lanes.drain(grace=grace) == DrainReport(0, 0, 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"grace": -1}, ValueError),
        ({"grace": float("nan")}, ValueError),
        ({"grace": "5"}, TypeError),
        ({"cancel_grace": -0.5}, ValueError),
        ({"cancel_grace": None}, TypeError),
        ({"waiting": "drop"}, ValueError),
    ],
)
async def test_a_bad_argument_of_drain_closes_nothing(
    options: dict[str, object], error: type[Exception], autojump_clock: MockClock
) -> None:
    ((name, value),) = options.items()
    async with open_lanes() as lanes:
        with pytest.raises(error, match=rf"{name}.*{value}"):
            await lanes.drain(**options)  # type: ignore[arg-type]
        assert await lanes.run(returns) == "value"


# ---- leaving the block


async def test_entering_is_no_checkpoint_and_leaving_is_one(autojump_clock: MockClock) -> None:
    manager = open_lanes()
    with assert_no_checkpoints():
        await manager.__aenter__()
    with assert_checkpoints():
        await manager.__aexit__(None, None, None)


async def test_leaving_waits_for_all_work_also_for_what_jobs_submit_meanwhile(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def body(n: int) -> None:
        await track.sleep(n)
        if n:
            lanes.submit_nowait(body, n - 1, session="alice")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(body, 3, session="alice")
        lanes.submit_nowait(track.sleep, "other")
    assert sorted(map(str, track.ended)) == ["0", "1", "2", "3", "other"]
    assert trio.current_time() == 5


async def test_leaving_refuses_new_work_from_outside(autojump_clock: MockClock) -> None:
    async def outsider(lanes: Lanes) -> None:
        await trio.sleep(1)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)

    async with trio.open_nursery() as nursery:
        async with open_lanes() as lanes:
            lanes.submit_nowait(trio.sleep, 5)
            nursery.start_soon(outsider, lanes)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)
        with pytest.raises(LanesClosedError):
            await lanes.run(returns)


@pytest.mark.parametrize("name", ["main", "session:alice"])
async def test_a_paused_lane_with_jobs_keeps_the_block_open_and_the_log_says_so_once(
    name: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    config = LaneConfig(concurrency=1, warn_after=1000)

    async def resumer(lanes: Lanes) -> None:
        await trio.sleep(100)
        lanes.resume(name)

    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}) as lanes:
            lanes.pause(name)
            lanes.submit_nowait(track.sleep, "paused", session="alice")
            nursery.start_soon(resumer, lanes)
    assert track.start_times == {"paused": 100}
    (line,) = messages(caplog)
    assert repr(name) in line
    assert "paused" in line


async def test_a_lane_paused_while_the_block_is_left_keeps_it_open_and_the_log_says_so_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    config = LaneConfig(concurrency=1, warn_after=1000)

    async def meddler(lanes: Lanes) -> None:
        await trio.sleep(0.5)
        lanes.pause("main")
        await trio.sleep(100)
        lanes.resume("main")

    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}) as lanes:
            lanes.submit_nowait(track.sleep, "running")
            lanes.submit_nowait(track.sleep, "waiting")
            nursery.start_soon(meddler, lanes)
    assert track.start_times == {"running": 0, "waiting": 100.5}
    assert len(messages(caplog)) == 1


async def test_a_paused_lane_without_jobs_keeps_nothing_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.pause()
        lanes.pause("session:alice")
    assert trio.current_time() == 0
    assert messages(caplog) == []


async def test_paused_jobs_are_told_when_the_block_is_cancelled(autojump_clock: MockClock) -> None:
    with trio.move_on_after(5) as scope:
        async with open_lanes({"main": 1}) as lanes:
            lanes.pause("main")
            jobs = [lanes.submit_nowait(returns, session=session) for session in (None, "alice")]
    assert scope.cancelled_caught
    for job in jobs:
        assert type(job.exception) is LanesClosedError


async def test_a_job_of_a_lane_may_close_and_drain_it_while_the_block_is_left(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(never_ends)
        lanes.submit_nowait(lanes.drain, lane="cron", name="drain")  # type: ignore[arg-type]
        (stuck, _) = lanes.jobs()
        with trio.move_on_after(5):
            await lanes.wait_idle()
        stuck.cancel()
    assert trio.current_time() == 5


async def test_what_is_known_of_the_lanes_can_be_read_when_they_have_ended(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(returns, session="alice")
        failed = lanes.submit_nowait(raises)
    assert await job.wait() == "value"
    with pytest.raises(BodyError):
        await failed.wait()
    await job.wait_started()
    await job.wait_done()
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.sessions) == (0, 0, 0)
    assert statistics.lanes["main"].finished == 2
    assert lanes.jobs() == lanes.sessions() == []
    assert "closed" in repr(lanes)
    lanes.close()
    assert lanes.clear() == lanes.reset() == 0
    lanes.pause()
    lanes.resume()
    lanes.lane("main").concurrency = 5
    assert await lanes.wait_active() is True
    await lanes.wait_idle()
    assert await lanes.drain() == DrainReport(0, 0, 0)
    assert job.cancel() is False


async def test_several_lanes_live_side_by_side_and_inside_each_other(
    autojump_clock: MockClock,
) -> None:
    async def outer_body() -> str:
        outer_job = current_job()
        async with open_lanes({"main": 1}) as inner:

            async def inner_body() -> Job[object] | None:
                return current_job()

            job = inner.submit_nowait(inner_body)
            assert await job.wait() is job
            assert current_job() is outer_job
            return await inner.run(returns)

    async with open_lanes({"main": 1}) as one, open_lanes({"main": 1}) as two:
        jobs = [lanes.submit_nowait(outer_body) for lanes in (one, two)]
        assert [job.id for job in jobs] == [1, 1]
        for job in jobs:
            assert await job.wait() == "value"
    assert trio.current_time() == 2


async def test_jobs_are_children_of_the_lanes_nursery_and_none_outlives_the_block(
    autojump_clock: MockClock,
) -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def body() -> None:
        tasks.append(trio.lowlevel.current_task())
        await trio.sleep(1)

    def size() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    before = size()
    async with open_lanes({"main": 5}) as lanes:
        assert size() == before  # idle lanes have no task
        for n in range(5):
            lanes.submit_nowait(body, session=str(n))
        await trio.sleep(0.5)
        assert len({task.parent_nursery for task in tasks}) == 1
        await lanes.wait_idle()
        await settle_down()
        assert size() == before
    assert size() == before
