"""Closing and draining."""

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints
from trio.testing import wait_all_tasks_blocked as settle_down

from tests.support.bodies import (
    BodyError,
    cleans_up_shielded,
    never_ends,
    raises,
    returns,
    returns_at_once,
    returns_in_spite_of_all,
    sleeps,
)
from tests.support.logs import messages
from tests.support.track import Track
from trio_lanes import (
    DrainReport,
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneInstrument,
    LaneResetError,
    Lanes,
    LanesClosedError,
    RateLimit,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

# ---- close


async def test_closing_lanes_do_not_wait_for_a_job_that_is_held(
    autojump_clock: MockClock,
) -> None:
    async def submits() -> Job[None]:
        await trio.sleep(1)
        job = lanes.submit_nowait(trio.sleep, 0, session="alice", delay=2e9)
        assert job.done  # nobody would release it
        return job

    async with open_lanes() as lanes:
        running = lanes.submit_nowait(submits)
        delayed = lanes.submit_nowait(trio.sleep, 0, delay=5)
        held = lanes.submit_nowait(trio.sleep, 0, session="alice", delay=1e9)
        await settle_down()
        assert await lanes.drain() == DrainReport(finished=2, cancelled=1, abandoned=0)
        assert trio.current_time() == 5
        assert delayed.state is JobState.SUCCEEDED
        for job in (held, await running.wait()):
            with pytest.raises(LanesClosedError):
                await job.wait()
        lanes.close()


async def test_check_open_raises_where_a_submission_would_and_submits_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def stays() -> None:
        await trio.sleep(1)
        lanes.check_open()  # a running job may still submit

    async with open_lanes({"main": 1}) as lanes:
        lanes.check_open()
        running = lanes.submit_nowait(stays)
        await settle_down()
        lanes.close("restarting", retry_after=30)
        for _ in range(2):
            with pytest.raises(LanesClosedError, match="restarting") as caught:
                lanes.check_open()
            assert caught.value.retry_after == 30
        assert lanes.jobs() == [running]
        await running.wait()
    assert messages(caplog) == [
        "refusing new work: the lanes are closed: restarting; retry after 30 s"
    ]


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


async def test_close_lets_accepted_jobs_run_to_their_ends(
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


async def test_a_job_of_lanes_inside_a_running_job_may_submit_while_the_outer_lanes_close(
    autojump_clock: MockClock,
) -> None:
    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes({"main": 3, "full": full}) as outer:

        async def leaf() -> list[object]:
            outer.check_open()
            handle = outer.submit_nowait(returns_at_once)
            async with outer.map(sleeps, [1, 2], lane="full") as results:
                mapped = [result async for result in results]
            return [await handle.wait(), await outer.run(sleeps, 1, lane="full"), *mapped]

        async def body() -> list[object]:
            async with open_lanes({"main": 1}) as inner:
                return await inner.run(leaf)

        job = outer.submit_nowait(body)
        await settle_down()
        outer.close()
        assert await job.wait() == ["value", 1, 1, 2]
        with pytest.raises(LanesClosedError):
            outer.check_open()


async def test_a_job_of_lanes_inside_a_running_job_may_wait_for_room_while_the_outer_lanes_close(
    autojump_clock: MockClock,
) -> None:
    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes({"main": 1, "full": full}) as outer:

        async def body() -> float:
            async with open_lanes({"main": 1}) as inner:
                return await inner.run(partial(outer.run, sleeps, 1, lane="full"))

        outer.submit_nowait(trio.sleep, 2, lane="full")
        job = outer.submit_nowait(body)
        await trio.sleep(1)
        outer.close()
        assert await job.wait() == 1
        assert trio.current_time() == 3


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


async def test_close_refuses_requests_for_room_that_do_not_come_from_a_running_job(
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


async def test_requests_for_room_by_jobs_of_other_lanes_are_refused_too(
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


async def test_drain_with_a_grace_cancels_the_jobs_that_are_left_and_reports_them(
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


async def test_sessions_and_lanes_of_templates_go_when_nothing_can_start_any_more(
    autojump_clock: MockClock,
) -> None:
    """The history of their rates, and pauses that time would end, matter no more then."""
    rated = LaneConfig(rate=RateLimit(1, per=3600))
    async with open_lanes({"main": 1, "sub:*": rated}, sessions=rated) as lanes:
        await lanes.run(trio.sleep, 0, session="alice", lane="sub:a")
        lanes.pause_for("session:bob", 600)
        lanes.pause_for("sub:b", 600)
        lanes.pause("session:carol")
        lanes.submit_nowait(trio.sleep_forever, session="dave")
        await lanes.drain(grace=1)
        assert lanes.sessions() == ["carol"]
        assert list(lanes.statistics().lanes) == ["main"]


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


async def test_drain_inside_a_job_leaves_out_that_job_and_the_jobs_that_wait_for_it(
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


@pytest.mark.parametrize("waiting", ["finish", "cancel"])
async def test_a_message_behind_a_drain_in_its_session_does_not_hold_that_up(
    autojump_clock: MockClock, waiting: Literal["finish", "cancel"]
) -> None:
    async with open_lanes({"main": 4}) as lanes:

        async def command() -> DrainReport:
            return await lanes.drain(waiting=waiting)

        drain = lanes.submit_nowait(command, session="alice")
        behind = lanes.submit_nowait(returns, session="alice")
        lanes.submit_nowait(trio.sleep, 1, session="bob")
        cancelled = int(waiting == "cancel")
        assert await drain.wait() == DrainReport(1, cancelled, 0)
        assert trio.current_time() == 1
    assert behind.state is (JobState.CANCELLED if cancelled else JobState.SUCCEEDED)


async def test_a_message_behind_a_drain_in_its_session_is_cancelled_with_what_outlives_the_grace(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:

        async def command() -> DrainReport:
            return await lanes.drain(grace=3)

        async def waits_for_it() -> None:
            await behind.wait()

        drain = lanes.submit_nowait(command, session="alice")
        behind = lanes.submit_nowait(returns, session="alice")
        lanes.submit_nowait(waits_for_it)
        lanes.submit_nowait(never_ends)
        assert await drain.wait() == DrainReport(1, 2, 0)
        assert trio.current_time() == 3
        assert type(behind.exception) is LanesClosedError


@pytest.mark.trio_only("asyncio has no shields")
async def test_drain_inside_a_job_gives_up_a_job_that_does_not_wait_for_that_job_any_more(
    autojump_clock: MockClock,
) -> None:
    async def drains() -> DrainReport:
        return await lanes.drain(grace=1, cancel_grace=5)

    async def shielded(patience: float) -> None:
        with trio.move_on_after(patience, shield=True):
            await job.wait_done()
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with open_lanes({"main": 3}) as lanes:
        job = lanes.submit_nowait(drains)
        for patience in (0, 3):
            lanes.submit_nowait(shielded, patience)
        assert await job.wait() == DrainReport(finished=0, cancelled=0, abandoned=2)


async def test_a_drain_of_nothing_is_a_checkpoint_and_reports_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        for grace in (float("inf"), 0, 5):
            with assert_checkpoints():
                assert await lanes.drain(grace=grace) == DrainReport(0, 0, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda lanes: lanes.pause("main"),
        lambda lanes: lanes.pause_for("session:a", 1),
        lambda lanes: lanes.resume(),
        lambda lanes: lanes.configure({"main": 2}),
        lambda lanes: setattr(lanes.lane("main"), "concurrency", 2),
        lambda lanes: lanes.add_instrument(cast("LaneInstrument", object())),
        lambda lanes: lanes.open_nursery(),
        lambda lanes: lanes.map(trio.sleep, [0]),
    ],
)
async def test_a_change_of_lanes_that_have_ended_is_refused(
    change: Callable[[Lanes], object],
) -> None:
    async with open_lanes() as lanes:
        change(lanes)
        lanes.resume()
        lanes.session("a").resume()
    with pytest.raises(LanesClosedError, match="the block was left"):
        change(lanes)
    assert lanes.clear() == lanes.reset() == 0


async def test_a_nursery_of_closed_lanes_is_refused_at_the_call_but_not_inside_a_job() -> None:
    async def body() -> None:
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(trio.sleep, 0)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        lanes.close("enough")
        with pytest.raises(LanesClosedError, match="enough"):
            lanes.open_nursery()
        await job.wait()
