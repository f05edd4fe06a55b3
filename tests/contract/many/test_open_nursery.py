"""`open_nursery`: children that are jobs, and everything else as in a nursery of Trio."""

from __future__ import annotations

import contextvars
import gc
import signal
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import (
    BodyError,
    cleans_up_shielded,
    never_ends,
    raises,
    raises_at_once,
    raises_beside_its_cancellation,
    raises_when_cancelled,
    returns,
    returns_at_once,
    returns_in_spite_of_all,
    swallows_its_cancellation,
)
from tests.support.track import Track
from trio_lanes import (
    Job,
    JobCancelledError,
    JobOptions,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneDeadlockError,
    LaneError,
    LaneFullError,
    LaneInstrument,
    LaneNursery,
    LaneResetError,
    Lanes,
    LanesClosedError,
    QueueTimeoutError,
    RateLimit,
    UnknownLaneError,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

CLOSED = "Nursery is closed to new arrivals"


class BlockError(Exception):
    """What a block raises here."""


# ---- order, limits, results


@pytest.mark.many_seeds(20)
async def test_children_start_in_the_order_of_the_calls(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes, lanes.open_nursery() as jobs:
        for label in range(20):
            jobs.start_soon(track.sleep, label)
    assert track.started == track.ended == list(range(20))


@pytest.mark.many_seeds(20)
async def test_children_of_a_session_keep_its_order_among_other_jobs_of_it(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        async with lanes.open_nursery() as jobs:
            for label in range(0, 12, 3):
                jobs.start_soon(track.sleep, label, session="alice")
                lanes.submit_nowait(track.sleep, label + 1, session="alice")
                jobs.submit_nowait(track.sleep, label + 2, session="alice")
    assert track.started == track.ended == list(range(12))
    assert track.peak == 1


async def test_children_take_the_options_of_jobs(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes, lanes.open_nursery() as jobs:
        jobs.start_soon(track.sleep, "first", 1.0, lane="cron")
        jobs.start_soon(track.sleep, "last", lane="cron", priority=-1)
        jobs.start_soon(track.sleep, "second", lane="cron", priority=1)
        named = jobs.submit_nowait(track.sleep, "other", name="a name", meta=5, session="alice")
        assert (named.name, named.meta, named.session, named.lane) == ("a name", 5, "alice", "main")
    assert track.started == ["first", "other", "second", "last"]


async def test_leaving_waits_for_all_children(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.open_nursery() as jobs:
            for label in range(5):
                jobs.start_soon(track.sleep, label)
            jobs.start_soon(track.sleep, "later", delay=10)
        assert len(track.ended) == 6
        assert trio.current_time() == 11


async def test_leaving_waits_for_no_job_that_is_no_child(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        other = lanes.submit_nowait(trio.sleep, 10)
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(trio.sleep, 1)
        assert trio.current_time() == 1
        assert other.state is JobState.RUNNING


async def test_a_handle_of_a_child_gives_its_value_inside_and_after_the_block(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            inside = jobs.submit_nowait(returns)
            after = jobs.submit_nowait(returns)
            assert await inside.wait() == "value"
        assert after.done
        assert await after.wait() == "value"


async def test_a_child_runs_in_the_context_of_the_call(autojump_clock: MockClock) -> None:
    variable = contextvars.ContextVar("variable", default="opened")

    async def body() -> str:
        return variable.get()

    async with open_lanes() as lanes, lanes.open_nursery() as jobs:
        variable.set("submitted")
        job = jobs.submit_nowait(body)
        variable.set("later")
    assert await job.wait() == "submitted"


@pytest.mark.trio_only("it is about checkpoints")
async def test_an_empty_nursery_lets_others_run_in_leaving_and_is_not_cancelled() -> None:
    others = []

    async def other() -> None:
        others.append("ran")

    async with open_lanes() as lanes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with trio.CancelScope() as scope:
                scope.cancel()
                async with lanes.open_nursery():
                    assert others == []
                async with lanes.open_nursery():
                    pass
            assert others == ["ran"]
            assert not scope.cancelled_caught


@pytest.mark.trio_only("it is about checkpoints")
async def test_entering_is_no_checkpoint() -> None:
    async with open_lanes() as lanes:
        manager = lanes.open_nursery()
        with trio.testing.assert_no_checkpoints():
            await manager.__aenter__()
        await manager.__aexit__(None, None, None)


@pytest.mark.trio_only("it is about checkpoints")
async def test_start_soon_and_submit_nowait_and_clear_are_no_checkpoints() -> None:
    async with open_lanes() as lanes, lanes.open_nursery() as jobs:
        with trio.testing.assert_no_checkpoints():
            jobs.start_soon(returns_at_once)
            jobs.submit_nowait(returns_at_once)
            jobs.clear()


async def test_only_lanes_open_a_nursery_of_jobs() -> None:
    with pytest.raises(TypeError, match="only"):
        LaneNursery()


async def test_the_repr_tells_how_many_children_run_and_wait(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes, lanes.open_nursery() as jobs:
        for _ in range(5):
            jobs.start_soon(returns)
        assert repr(jobs).endswith("2 active, 3 waiting>")
        assert repr(jobs).startswith("<trio_lanes.LaneNursery at 0x")


# ---- failures


async def test_the_failure_of_a_child_cancels_its_siblings_and_the_block(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
                running = jobs.submit_nowait(cleans_up_shielded)
                for label in range(5):
                    jobs.start_soon(track.sleep, label, session="alice")
                waiting = jobs.submit_nowait(never_ends, delay=60)
                await trio.sleep_forever()
        assert trio.current_time() == 3  # when the running child has ended
        assert running.state is waiting.state is JobState.CANCELLED
        assert waiting.started_at is None
        assert track.ended == []
        assert lanes.jobs() == []


@pytest.mark.many_seeds(10)
async def test_no_waiting_job_starts_after_a_failure_of_a_sibling(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
                for label in range(5):
                    jobs.start_soon(track.sleep, label)
        assert track.started == []
        assert track.ended == []
        assert trio.current_time() == 2


async def test_a_failure_of_the_block_cancels_the_children_before_a_child_can_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(BlockError):
            async with lanes.open_nursery() as jobs:
                running = jobs.submit_nowait(cleans_up_shielded)
                jobs.start_soon(track.sleep, "waiting")
                await trio.sleep(1)
                raise BlockError
        assert running.state is JobState.CANCELLED
        assert track.started == []
        assert trio.current_time() == 2


async def test_failures_of_the_block_and_of_children_leave_together(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        with pytest.RaisesGroup(BlockError, BodyError, BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises_when_cancelled)
                jobs.start_soon(raises_when_cancelled)
                jobs.start_soon(swallows_its_cancellation)
                jobs.start_soon(never_ends)
                await trio.sleep(1)
                raise BlockError


async def test_a_single_failure_leaves_in_a_group_and_is_the_very_exception() -> None:
    error = BodyError()

    async def body() -> None:
        raise error

    async with open_lanes() as lanes:
        with pytest.raises(ExceptionGroup) as caught:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(body)
        assert caught.value.exceptions == (error,)
        with pytest.RaisesGroup(BlockError):
            async with lanes.open_nursery():
                raise BlockError


@pytest.mark.trio_only("it runs Trio")
@pytest.mark.filterwarnings("ignore::trio.TrioDeprecationWarning")
def test_groups_are_strict_in_a_run_whose_groups_are_not() -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            with pytest.RaisesGroup(BodyError):
                async with lanes.open_nursery() as jobs:
                    jobs.start_soon(raises_at_once)

    trio.run(main, strict_exception_groups=False)


async def test_groups_of_nested_nurseries_are_nested(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 4}) as lanes:
        with pytest.RaisesGroup(pytest.RaisesGroup(BodyError, BlockError), BodyError):
            async with lanes.open_nursery() as outer:
                outer.start_soon(raises_when_cancelled)
                async with lanes.open_nursery() as inner:
                    inner.start_soon(raises_when_cancelled)
                    await trio.sleep(1)
                    raise BlockError


async def test_the_failure_of_a_child_of_the_outer_nursery_cancels_the_inner_nursery(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "other": 1}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as outer:
                outer.start_soon(raises)
                async with lanes.open_nursery() as inner:
                    running = inner.submit_nowait(never_ends, lane="other")
                    waiting = inner.submit_nowait(never_ends, lane="other")
        assert running.state is waiting.state is JobState.CANCELLED
        assert waiting.started_at is None


async def test_a_caught_failure_of_the_inner_nursery_leaves_the_outer_nursery_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.open_nursery() as outer:
            job = outer.submit_nowait(trio.sleep, 5)
            with pytest.RaisesGroup(BodyError):
                async with lanes.open_nursery() as inner:
                    inner.start_soon(raises)
        assert job.state is JobState.SUCCEEDED
        assert trio.current_time() == 5


async def test_a_nursery_of_lanes_works_inside_a_trio_nursery_and_around_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:

        async def block() -> None:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)

        with pytest.RaisesGroup(pytest.RaisesGroup(BodyError)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(block)
        with pytest.RaisesGroup(pytest.RaisesGroup(BlockError)):
            async with lanes.open_nursery():
                async with trio.open_nursery():
                    raise BlockError


async def test_a_group_that_a_body_raises_stays_a_group(autojump_clock: MockClock) -> None:
    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raises_at_once)
            nursery.start_soon(raises_at_once)

    async with open_lanes() as lanes:
        with pytest.RaisesGroup(pytest.RaisesGroup(BodyError, BodyError)):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(body)


async def test_a_child_that_raises_besides_its_cancellation_fails_with_that_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        with pytest.RaisesGroup(pytest.RaisesGroup(BodyError)):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises_beside_its_cancellation)
                await trio.sleep(1)
                jobs.cancel_scope.cancel()


@pytest.mark.trio_only("no coroutine raises StopIteration")
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit])
async def test_a_block_may_raise_what_generators_take_for_their_own(
    kind: type[BaseException],
) -> None:
    async with open_lanes() as lanes:
        with pytest.RaisesGroup(kind):
            async with lanes.open_nursery():
                raise kind


async def test_a_failure_keeps_the_context_with_which_it_was_raised(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise BodyError from BlockError()

    async with open_lanes() as lanes:
        with pytest.RaisesGroup(BodyError) as caught:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(body)
                await trio.sleep(1)
                jobs.cancel_scope.cancel()
    (error,) = caught.value.exceptions
    assert isinstance(error.__cause__, BlockError)
    assert isinstance(error.__context__, BlockError | trio.Cancelled)


async def test_a_traceback_leads_to_the_line_that_raised(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        with pytest.RaisesGroup(BodyError) as caught:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
    (error,) = caught.value.exceptions
    frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "raises"
    assert len(frames) < 5


async def test_a_failure_is_raised_by_the_nursery_even_if_the_block_has_caught_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                job = jobs.submit_nowait(raises)
                with pytest.raises(BodyError):
                    await job.wait()


async def test_failures_of_children_are_not_logged_as_unseen(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        with pytest.RaisesGroup(BodyError, BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
                jobs.start_soon(raises_when_cancelled)
    gc.collect()
    assert caplog.records == []


async def test_a_base_exception_of_a_child_leaves_open_lanes_and_the_nursery_is_told(
    autojump_clock: MockClock,
) -> None:
    class Stop(BaseException):
        pass

    stop = Stop()

    async def body() -> None:
        await trio.sleep(1)
        raise stop

    told: list[BaseException] = []

    async def owner(lanes: Lanes) -> None:
        try:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(body)
        except ExceptionGroup as group:
            told.extend(group.exceptions)

    async with trio.open_nursery() as owners:
        with pytest.RaisesGroup(Stop, allow_unwrapped=True, flatten_subgroups=True):
            async with open_lanes() as lanes:
                owners.start_soon(owner, lanes)
                await trio.sleep_forever()
    (error,) = told
    assert isinstance(error, JobCancelledError)
    assert error.__cause__ is stop


# ---- which ends of a child are failures


async def test_a_child_that_is_cancelled_or_cleared_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.open_nursery() as jobs:
            running = jobs.submit_nowait(never_ends)
            withdrawn = jobs.submit_nowait(never_ends)
            cleared = jobs.submit_nowait(never_ends)
            kept = jobs.submit_nowait(returns, session="alice")
            withdrawn.cancel()
            lanes.clear("main", reason="enough")
            assert cleared.state is kept.state is JobState.CANCELLED
            kept = jobs.submit_nowait(returns)
            await trio.sleep(1)
            running.cancel("enough")
        assert await kept.wait() == "value"
        assert not jobs.cancel_scope.cancel_called


@pytest.mark.parametrize("option", ["timeout", "idle_timeout"])
async def test_a_timeout_of_a_child_is_a_failure(autojump_clock: MockClock, option: str) -> None:
    async with open_lanes() as lanes:
        with pytest.RaisesGroup(JobTimeoutError):
            async with lanes.open_nursery() as jobs:
                options = (
                    JobOptions(timeout=1) if option == "timeout" else JobOptions(idle_timeout=1)
                )
                jobs.start_soon(never_ends, **options)
                await trio.sleep_forever()


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_queue_timeout_of_a_child_is_a_failure(
    autojump_clock: MockClock, seconds: int
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(QueueTimeoutError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(never_ends)
                jobs.start_soon(never_ends, queue_timeout=seconds)
                await trio.sleep_forever()
        assert trio.current_time() == seconds


async def test_a_reset_of_a_child_is_a_failure_and_its_body_is_waited_for_no_more(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(LaneResetError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(returns_in_spite_of_all)
                await trio.sleep(1)
                lanes.reset()
                await trio.sleep_forever()
        assert trio.current_time() == 1
        assert lanes.statistics().abandoned == 1


async def test_a_child_that_never_started_since_the_lanes_closed_is_a_failure(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(LanesClosedError):
            async with lanes.open_nursery() as jobs:
                running = jobs.submit_nowait(returns_in_spite_of_all)
                jobs.start_soon(never_ends)
                await lanes.drain(waiting="cancel")
        assert running.state is JobState.SUCCEEDED


async def test_a_child_that_a_drain_cancels_is_no_failure(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(never_ends)
            await lanes.drain(grace=1)
        assert trio.current_time() == 1


@pytest.mark.parametrize(
    ("waits", "error"),
    [(False, JobCancelledError), (True, LanesClosedError)],
    ids=["runs", "waits"],
)
async def test_a_child_that_ends_because_its_lanes_were_cancelled_is_a_failure(
    autojump_clock: MockClock, waits: bool, error: type[Exception]
) -> None:
    async with trio.open_nursery() as outside:

        async def owner(lanes: Lanes) -> None:
            with pytest.RaisesGroup(error):
                async with lanes.open_nursery() as jobs:
                    if waits:
                        lanes.submit_nowait(never_ends)
                    jobs.start_soon(cleans_up_shielded)
                    await trio.sleep_forever()

        with trio.move_on_after(1):
            async with open_lanes({"main": 1}) as lanes:
                outside.start_soon(owner, lanes)
                await trio.sleep_forever()


async def test_a_body_that_fails_since_another_job_was_cancelled_is_a_failure(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        other = lanes.submit_nowait(never_ends)
        with pytest.RaisesGroup(JobCancelledError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(other.wait)
                await trio.sleep(1)
                other.cancel()
                await trio.sleep_forever()


async def test_the_block_is_not_told_what_follows_from_the_failure_of_a_child(
    autojump_clock: MockClock,
) -> None:
    told: list[JobCancelledError] = []
    async with open_lanes({"main": 1}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
                job = jobs.submit_nowait(never_ends)
                try:
                    await job.wait()
                except JobCancelledError as error:
                    told.append(error)
    assert job.state is JobState.CANCELLED
    assert told == []


# ---- cancellation


async def test_cancelling_the_scope_withdraws_what_waits_and_cancels_what_runs(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1, "other": 1}) as lanes:
        other = lanes.submit_nowait(trio.sleep, 10, lane="other")
        async with lanes.open_nursery() as jobs:
            running = jobs.submit_nowait(cleans_up_shielded)
            jobs.start_soon(track.sleep, "waits")
            jobs.start_soon(track.sleep, "waits in its session", session="alice")
            jobs.start_soon(track.sleep, "waits for its time", delay=1.5)
            await trio.sleep(1)
            jobs.cancel_scope.cancel()
        assert trio.current_time() == 2
        assert jobs.cancel_scope.cancelled_caught
        assert running.state is JobState.CANCELLED
        assert track.started == []
        assert other.state is JobState.RUNNING


@pytest.mark.trio_only("it is about checkpoints")
async def test_a_body_that_returns_in_spite_of_its_cancellation_has_succeeded(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            handles = [
                jobs.submit_nowait(body)
                for body in (swallows_its_cancellation, returns_in_spite_of_all)
            ]
            await trio.sleep(1)
            jobs.cancel_scope.cancel()
        assert [await job.wait() for job in handles] == ["value", "value"]
        assert not jobs.cancel_scope.cancelled_caught


async def test_a_deadline_of_the_scope_cancels_the_children(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.open_nursery() as jobs:
            jobs.cancel_scope.deadline = trio.current_time() + 3
            jobs.start_soon(never_ends)
            jobs.start_soon(never_ends)
        assert trio.current_time() == 3
        assert lanes.jobs() == []


async def test_a_cancellation_from_outside_waits_for_the_children_and_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.open_nursery() as jobs:
                first = jobs.submit_nowait(cleans_up_shielded)
                second = jobs.submit_nowait(cleans_up_shielded)
                third = jobs.submit_nowait(never_ends)
        assert scope.cancelled_caught
        assert trio.current_time() == 2
        assert {first.state, second.state, third.state} == {JobState.CANCELLED}
        assert third.started_at is None


@pytest.mark.trio_only("asyncio has no level-triggered scopes")
async def test_a_failure_in_a_nursery_that_is_cancelled_from_outside_leaves_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        with trio.move_on_after(1) as scope, pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises_when_cancelled)
            raise AssertionError
        assert not scope.cancelled_caught
        with pytest.RaisesGroup(BodyError):  # from which the scope has taken what is its own
            with trio.move_on_after(1) as scope:
                async with lanes.open_nursery() as jobs:
                    jobs.start_soon(raises_when_cancelled)
                    jobs.start_soon(never_ends)
        assert scope.cancelled_caught


async def test_a_scope_that_is_cancelled_before_the_block_lets_no_child_wait(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(never_ends)
                jobs.start_soon(track.sleep, "waits")
        assert scope.cancelled_caught
        assert trio.current_time() == 0
        assert track.started == []


@pytest.mark.trio_only("asyncio has no level-triggered scopes")
async def test_a_child_that_comes_after_a_cancellation_from_outside_never_starts(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(cleans_up_shielded)
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.5)
                    late = jobs.submit_nowait(returns_at_once)
                    check_was_withdrawn(late)
        assert scope.cancelled_caught
    assert late.started_at is None


async def test_a_shield_keeps_a_cancellation_from_outside_away_from_the_children(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.open_nursery() as jobs:
                jobs.cancel_scope.shield = True
                jobs.start_soon(track.sleep, 0)
                jobs.start_soon(track.sleep, 1)
            assert trio.current_time() == 2
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert track.ended == [0, 1]


@pytest.mark.trio_only("asyncio has no shields")
async def test_taking_the_shield_away_cancels_the_children(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            async with lanes.open_nursery() as jobs:
                jobs.cancel_scope.shield = True
                jobs.start_soon(never_ends)
                await trio.sleep(3)
                jobs.cancel_scope.shield = False
        assert scope.cancelled_caught
        assert trio.current_time() == 3


async def test_the_cancellation_of_one_nursery_leaves_another_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        async with lanes.open_nursery() as outer:
            job = outer.submit_nowait(trio.sleep, 5)
            async with lanes.open_nursery() as inner:
                inner.start_soon(never_ends)
                inner.cancel_scope.cancel()
            assert trio.current_time() == 0
        assert job.state is JobState.SUCCEEDED


@pytest.mark.parametrize("way", ["clear", "failure"])
async def test_no_child_starts_because_the_child_before_it_is_withdrawn(
    autojump_clock: MockClock, way: str
) -> None:
    track = Track()
    config = LaneConfig(concurrency=4, rate=RateLimit(10, per=10, algorithm="sliding"))
    async with open_lanes({"main": config}) as lanes:
        try:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(track.sleep, "first", cost=5)
                dear = jobs.submit_nowait(track.sleep, "dear", cost=10)
                jobs.start_soon(track.sleep, "cheap", cost=1)  # could start if it were the head
                jobs.start_soon(track.sleep, "cheap", cost=1)
                if way == "clear":
                    assert jobs.clear() == 3
                    dear = jobs.submit_nowait(track.sleep, "dear", cost=10)
                    jobs.start_soon(track.sleep, "cheap", cost=1)
                jobs.start_soon(track.sleep, "dearest", cost=10, priority=1)
                dear.cancel()
                if way == "clear":
                    assert jobs.clear() == 2
                else:
                    raise BlockError
        except* BlockError:
            pass
    assert track.started == ["first"]


@pytest.mark.many_seeds(10)
async def test_a_slot_that_comes_in_the_pass_of_a_failure_starts_no_child(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    gate = trio.Event()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.hold, "other", gate)
        with pytest.RaisesGroup(BlockError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(track.sleep, "child")
                await trio.sleep(1)
                gate.set()
                raise BlockError
    assert track.started == ["other"]


@pytest.mark.many_seeds(10)
async def test_when_a_failure_cancels_the_block_all_siblings_that_wait_are_withdrawn(
    autojump_clock: MockClock,
) -> None:
    states: list[JobState] = []
    async with open_lanes({"main": 1, "other": 0}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises)
                waiting = [jobs.submit_nowait(returns, lane="other") for _ in range(5)]
                try:
                    await trio.sleep_forever()
                finally:
                    states = [job.state for job in waiting]
    assert states == [JobState.CANCELLED] * 5


async def test_a_child_may_cancel_its_nursery(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        async with lanes.open_nursery() as jobs:

            async def body() -> str:
                jobs.cancel_scope.cancel()
                return "value"

            job = jobs.submit_nowait(body)
            other = jobs.submit_nowait(never_ends)
        assert await job.wait() == "value"
        assert other.state is JobState.CANCELLED


async def test_the_end_of_the_lanes_takes_a_nursery_in_their_block_with_it(
    autojump_clock: MockClock,
) -> None:
    with pytest.RaisesGroup(BodyError):
        async with open_lanes({"main": 2}) as lanes:
            lanes.start_soon(raises)
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(never_ends)
                await trio.sleep_forever()


# ---- Ctrl-C


@pytest.mark.trio_only("it runs Trio")
@pytest.mark.parametrize("where", ["block", "leaving", "child"])
def test_ctrl_c_cancels_the_children_and_leaves_in_a_group(where: str) -> None:
    handles: list[Job[Any]] = []

    async def interrupt() -> None:
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            if where == "leaving":
                nursery.start_soon(interrupt)
            async with open_lanes({"main": 3}) as lanes, lanes.open_nursery() as jobs:
                handles.append(jobs.submit_nowait(cleans_up_shielded))
                handles.append(jobs.submit_nowait(never_ends))
                handles.append(jobs.submit_nowait(never_ends, session="alice"))
                handles.append(jobs.submit_nowait(never_ends, session="alice"))
                if where == "block":
                    await interrupt()
                elif where == "child":
                    jobs.start_soon(interrupt, lane="main", priority=1)
                    handles[1].cancel()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    interrupts, others = caught.value.split(KeyboardInterrupt)
    assert interrupts is not None
    if where == "child":  # it leaves the lanes, and the nursery is told what that was to it
        assert others is not None
        assert others.split(LaneError)[1] is None
    else:
        assert others is None
    assert [job.state for job in handles] == [JobState.CANCELLED] * 4
    assert handles[3].started_at is None


# ---- arriving late


async def test_a_nursery_that_was_left_takes_no_more_children() -> None:
    track = Track()
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            pass
        with pytest.raises(RuntimeError, match=CLOSED):
            jobs.start_soon(track.sleep, "late")
        with pytest.raises(RuntimeError, match=CLOSED):
            jobs.submit_nowait(track.sleep, "late")
        assert lanes.jobs() == []
        assert jobs.clear() == 0
    assert track.started == []


@pytest.mark.many_seeds(10)
async def test_a_nursery_is_closed_as_soon_as_its_last_child_has_ended(
    autojump_clock: MockClock,
) -> None:
    refused = []

    async def latecomer(job: Job[Any], jobs: LaneNursery) -> None:
        await job.wait_done()
        for _ in range(3):
            try:
                jobs.start_soon(returns_at_once)
            except RuntimeError as error:
                refused.append(str(error))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            nursery.start_soon(latecomer, jobs.submit_nowait(returns), jobs)
        jobs_at_the_end = lanes.jobs()
    assert jobs_at_the_end == []
    assert set(refused) <= {CLOSED}


def check_was_withdrawn(job: Job[Any]) -> None:
    assert job.state is JobState.CANCELLED
    assert job.cancel_called
    assert type(job.exception) is JobCancelledError
    assert job.started_at is None


@pytest.mark.trio_only("it turns the clock of Trio")
@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("how", ["cancelled", "past its deadline"])
async def test_a_child_that_a_cancelled_nursery_is_given_is_withdrawn_in_the_call(
    mock_clock: MockClock, how: str, session: str | None
) -> None:
    # No lane has room for a job that waits, but such a child does not wait.
    async with open_lanes({"main": LaneConfig(max_waiting=0)}) as lanes:
        async with lanes.open_nursery() as jobs:
            if how == "cancelled":
                jobs.cancel_scope.cancel()
            else:
                jobs.cancel_scope.deadline = trio.current_time() + 1
                mock_clock.jump(2)
            jobs.start_soon(returns_at_once, session=session)
            check_was_withdrawn(jobs.submit_nowait(returns_at_once, session=session))
            assert lanes.jobs() == lanes.sessions() == []
            with pytest.raises(UnknownLaneError):
                jobs.start_soon(returns, lane="nowhere")
        with pytest.raises(RuntimeError, match=CLOSED):
            jobs.start_soon(returns)


@pytest.mark.many_seeds(10)
async def test_a_child_that_submits_in_the_pass_of_a_cancellation_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 3}) as lanes:
        async with lanes.open_nursery() as jobs:

            async def crawl(depth: int) -> None:
                await trio.sleep(1)
                jobs.start_soon(crawl, depth + 1)

            jobs.cancel_scope.deadline = trio.current_time() + 3
            jobs.start_soon(crawl, 0)
        assert trio.current_time() == 3
        assert lanes.jobs() == []


@pytest.mark.trio_only("it is about a pass of Trio's")
@pytest.mark.many_seeds(10)
async def test_a_child_that_submits_in_the_pass_of_a_failure_adds_none(
    autojump_clock: MockClock,
) -> None:
    event = trio.Event()
    async with open_lanes({"main": 3}) as lanes:
        with pytest.RaisesGroup(BodyError):
            async with lanes.open_nursery() as jobs:

                async def submits() -> None:
                    await event.wait()
                    jobs.start_soon(returns)

                async def fails() -> None:
                    await event.wait()
                    raise BodyError

                for body in (submits, fails, submits):
                    jobs.start_soon(body)
                await trio.testing.wait_all_tasks_blocked()
                event.set()


@pytest.mark.parametrize("then", ["more children", "an error of the block", "a cancellation"])
async def test_a_child_that_fails_in_the_call_that_submits_it_fails_the_nursery(then: str) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause("main")
        failures = [QueueTimeoutError]
        if then == "an error of the block":
            failures.append(BlockError)
        with pytest.RaisesGroup(*failures):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(returns, queue_timeout=0)
                if then == "more children":
                    check_was_withdrawn(jobs.submit_nowait(returns))
                elif then == "an error of the block":
                    raise BlockError
                else:
                    jobs.cancel_scope.cancel()


@pytest.mark.parametrize("then", ["an error of the block", "a cancellation"])
async def test_a_reset_of_a_child_right_before_the_nursery_is_cancelled_is_a_failure(
    autojump_clock: MockClock, then: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        failures = [LaneResetError]
        if then == "an error of the block":
            failures.append(BlockError)
        with pytest.RaisesGroup(*failures):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(never_ends)
                await trio.sleep(1)
                lanes.reset("main")
                if then == "an error of the block":
                    raise BlockError
                jobs.cancel_scope.cancel()


async def test_while_children_run_they_may_submit_others_though_the_block_has_ended(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.open_nursery() as jobs:

            async def chain(n: int) -> None:
                await track.sleep(n)
                if n:
                    jobs.start_soon(chain, n - 1)

            jobs.start_soon(chain, 3)
        assert track.ended == [3, 2, 1, 0]
        assert trio.current_time() == 4


async def test_other_tasks_may_submit_children(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs, trio.open_nursery() as nursery:

            async def other() -> None:
                await trio.sleep(1)
                jobs.start_soon(track.sleep, "from elsewhere")

            nursery.start_soon(other)
        assert track.ended == ["from elsewhere"]


# ---- refused at the call


async def test_a_full_lane_is_an_error_at_the_call_and_no_failure_of_the_nursery(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(returns)
            jobs.start_soon(returns)
            with pytest.raises(LaneFullError):
                jobs.start_soon(returns)
            with pytest.raises(LaneFullError):
                jobs.submit_nowait(returns)
        assert lanes.lane("main").statistics().finished == 2


async def test_a_bad_child_is_an_error_at_the_call() -> None:
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            with pytest.raises(UnknownLaneError):
                jobs.start_soon(returns, lane="nowhere")
            with pytest.raises(TypeError, match="callable"):
                jobs.start_soon(5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="sesion"):
                jobs.start_soon(returns, sesion="alice")  # type: ignore[call-arg]
            with pytest.raises(ValueError, match="blank"):
                jobs.start_soon(returns, session=" ")
            with pytest.raises(ValueError, match="yield_slot"):
                jobs.start_soon(returns, yield_slot=True)
            assert lanes.jobs() == []


async def test_closed_lanes_refuse_children_at_the_call() -> None:
    async with open_lanes() as lanes:
        async with lanes.open_nursery() as jobs:
            lanes.close()
            with pytest.raises(LanesClosedError):
                jobs.start_soon(returns)


# ---- clear


async def test_clear_withdraws_children_that_wait_and_nothing_else(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.open_nursery() as jobs:
            running = jobs.submit_nowait(returns)
            waiting = [jobs.submit_nowait(never_ends, session=name) for name in (None, "alice")]
            waiting.append(jobs.submit_nowait(never_ends, delay=5))
            other = lanes.submit_nowait(returns)
            assert jobs.clear() == 3
            assert jobs.clear() == 0
            assert [job.state for job in waiting] == [JobState.CANCELLED] * 3
            assert isinstance(waiting[0].exception, JobCancelledError)
            jobs.start_soon(returns)  # goes on to take children
        assert not jobs.cancel_scope.cancel_called
        assert await running.wait() == await other.wait() == "value"
        assert trio.current_time() == 6


async def test_clear_counts_the_jobs_that_it_has_withdrawn_itself(
    autojump_clock: MockClock,
) -> None:
    class Hasty(LaneInstrument):
        """Cancels everything as soon as one job is cancelled."""

        def job_finished(self, job: Job[Any]) -> None:
            for other in handles:
                other.cancel()

    handles: list[Job[Any]] = []
    async with open_lanes({"main": 1}, instruments=[Hasty()]) as lanes:
        async with lanes.open_nursery() as jobs:
            handles += [jobs.submit_nowait(never_ends) for _ in range(4)]
            assert jobs.clear() == 1


# ---- inside a job


async def test_a_nursery_inside_a_job_waits_for_children_in_another_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "subagent": 2}) as lanes:

        async def turn() -> list[str]:
            async with lanes.open_nursery() as jobs:
                handles = [jobs.submit_nowait(returns, lane="subagent") for _ in range(4)]
                assert handles[0].parent is current_job()
            return [await job.wait() for job in handles]

        assert await lanes.run(turn, session="alice") == ["value"] * 4
        assert trio.current_time() == 4


async def test_children_in_the_session_of_the_job_around_them_are_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}) as lanes:

        async def turn() -> None:
            with pytest.RaisesGroup(LaneDeadlockError):
                async with lanes.open_nursery() as jobs:
                    jobs.start_soon(track.sleep, "behind itself", session="alice")
                    await trio.sleep_forever()

        await lanes.run(turn, session="alice")
        assert track.started == []
        assert trio.current_time() == 0


async def test_children_that_need_the_slot_of_the_job_around_them_are_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:

        async def turn() -> str:
            with pytest.RaisesGroup(LaneDeadlockError):
                async with lanes.open_nursery() as jobs:
                    jobs.start_soon(returns)
                    jobs.start_soon(returns)
            return "goes on"

        assert await lanes.run(turn) == "goes on"
        assert lanes.jobs() == []


async def test_a_job_that_lends_its_slot_around_a_nursery_is_no_deadlock(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:

        async def turn() -> str:
            job = current_job()
            assert job is not None
            async with job.yield_slot(), lanes.open_nursery() as jobs:
                handle = jobs.submit_nowait(returns)
                jobs.start_soon(returns)
            return await handle.wait()

        assert await lanes.run(turn, session="alice") == "value"
        assert trio.current_time() == 4


async def test_a_child_that_waits_for_the_job_around_it_is_a_deadlock_and_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:

        async def waits_for(job: Job[Any]) -> None:
            await trio.sleep(1)
            await job.wait_done()

        async def turn() -> None:
            job = current_job()
            assert job is not None
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(waits_for, job)

        # The wait that began last fails.
        with pytest.RaisesGroup(LaneDeadlockError):
            await lanes.run(turn)
        assert lanes.jobs() == []


async def test_a_wait_for_a_child_that_becomes_a_deadlock_withdraws_the_child(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2, "other": 1}) as lanes:

        async def turn() -> None:
            job = current_job()
            assert job is not None
            lanes.start_soon(trio.sleep, 9)  # the other slot of main
            lanes.start_soon(job.wait_done, lane="other")
            await trio.sleep(1)
            with pytest.RaisesGroup(LaneDeadlockError):
                async with lanes.open_nursery() as jobs:
                    child = jobs.submit_nowait(returns, session="bob")
                    await trio.sleep(1)
                    lanes.start_soon(returns, session="bob", lane="other", priority=1)
                    await trio.sleep_forever()
            assert child.state is JobState.CANCELLED
            assert child.started_at is None
            assert trio.current_time() == 2

        await lanes.run(turn)


@pytest.mark.many_seeds(10)
async def test_a_deadlock_with_a_child_that_runs_cancels_it_and_waits_for_its_end(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with open_lanes({"main": 2}) as lanes:

        async def waits_for(job: Job[Any]) -> None:
            try:
                await job.wait_done()
            except LaneDeadlockError:
                told.append("child")  # which began to wait last
                raise
            except trio.Cancelled:
                told.append("owner")
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

        async def turn() -> None:
            job = current_job()
            assert job is not None
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(waits_for, job)

        with pytest.RaisesGroup(LaneDeadlockError):
            await lanes.run(turn)
        assert trio.current_time() == (1 if told == ["owner"] else 0)
        assert lanes.jobs() == []


@pytest.mark.many_seeds(10)
async def test_a_shielded_wait_of_a_child_for_its_owner_is_undone_by_the_end_of_the_owner(
    autojump_clock: MockClock,
) -> None:
    ended: list[str] = []
    async with open_lanes({"main": 2}) as lanes:

        async def waits_for(job: Job[Any]) -> None:
            with trio.CancelScope(shield=True):
                await job.wait_done()
            ended.append("child")

        async def turn() -> None:
            job = current_job()
            assert job is not None
            try:
                async with lanes.open_nursery() as jobs:
                    jobs.start_soon(waits_for, job)
            finally:
                ended.append("owner")

        with pytest.RaisesGroup(LaneDeadlockError):
            await lanes.run(turn)
    # Where the child began to wait first, the error is the owner's, and only its end helps.
    assert ended in (["owner"], ["owner", "child"])


async def test_a_job_whose_nursery_is_cancelled_with_it_ends_after_its_children(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "subagent": 1}) as lanes:

        async def turn() -> None:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(cleans_up_shielded, lane="subagent")
                jobs.start_soon(never_ends, lane="subagent")

        job = lanes.submit_nowait(turn)
        await trio.sleep(1)
        job.cancel("enough")
        await job.wait_done()
        assert job.state is JobState.CANCELLED
        assert trio.current_time() == 2
        assert lanes.jobs() == []


async def test_a_child_may_open_a_nursery_of_its_own(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "subagent": 4}) as lanes:

        async def turn() -> None:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(raises, lane="subagent")
                jobs.start_soon(never_ends, lane="subagent")

        with pytest.RaisesGroup(pytest.RaisesGroup(BodyError)):
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(turn)
        assert lanes.jobs() == []


async def test_jobs_that_wait_for_idle_lanes_inside_a_child_do_not_wait_for_its_owner(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "subagent": 1}) as lanes:

        async def turn() -> None:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(lanes.wait_idle, lane="subagent")

        await lanes.run(turn)


# ---- what it leaves behind, and costs


async def test_no_child_outlives_the_block_however_it_is_left(autojump_clock: MockClock) -> None:
    @asynccontextmanager
    async def ended() -> AsyncIterator[tuple[Lanes, list[Job[Any]]]]:
        async with open_lanes({"main": 2}) as lanes:
            handles: list[Job[Any]] = []
            yield lanes, handles
            assert handles
            assert all(job.done for job in handles)

    for ending in (raises, never_ends, returns):
        async with ended() as (lanes, handles):
            with trio.move_on_after(3):
                try:
                    async with lanes.open_nursery() as jobs:
                        for body in (ending, cleans_up_shielded, returns_in_spite_of_all, ending):
                            handles.append(jobs.submit_nowait(body))
                except* BodyError:
                    pass


async def test_the_failure_of_a_nursery_leaves_no_cyclic_garbage(
    autojump_clock: MockClock,
) -> None:
    async def ends_badly(lanes: Lanes) -> None:
        try:
            async with lanes.open_nursery() as jobs:
                for body in (raises, never_ends, never_ends):
                    jobs.start_soon(body)
        except* BodyError:
            pass

    async with open_lanes({"main": 2}) as lanes:
        await ends_badly(lanes)
        await trio.sleep(1)
        gc.collect()
        gc.disable()
        try:
            await ends_badly(lanes)
            await trio.sleep(1)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            ours = [thing for thing in gc.garbage if isinstance(thing, BaseException | Job)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert ours == []


@pytest.mark.trio_only("it counts tasks of Trio's")
def test_a_thousand_children_take_one_task_each_and_few_steps() -> None:
    children = 1_000

    class Count(trio.abc.Instrument):
        tasks = steps = 0

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.tasks += 1

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.steps += 1

    count = Count()

    async def main() -> None:
        async with open_lanes({"main": 8}) as lanes, lanes.open_nursery() as jobs:
            for _ in range(children):
                jobs.start_soon(returns_at_once)

    trio.run(main, instruments=[count])
    assert count.tasks < children + 100
    assert count.steps < 2.1 * children
