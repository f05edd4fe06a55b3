"""`run`, when its caller is cancelled or had to wait for room."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import (
    BodyError,
    cleans_up_shielded,
    raises_at_once,
    raises_when_cancelled,
    returns_at_once,
    returns_in_spite_of_all,
    swallows_its_cancellation,
)
from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


async def test_run_whose_caller_is_cancelled_withdraws_a_waiting_job(
    autojump_clock: MockClock,
) -> None:
    called = False

    async def body() -> None:
        nonlocal called
        called = True

    for session in (None, "alice"):
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(trio.sleep, 10, session=session)
            with trio.move_on_after(1) as scope:
                await lanes.run(body, session=session)
            assert scope.cancelled_caught
            assert lanes.statistics().waiting == 0
    assert not called


async def test_run_whose_caller_is_cancelled_ends_only_when_its_job_has(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            await lanes.run(cleans_up_shielded)
        assert scope.cancelled_caught
        assert trio.current_time() == 2
        assert lanes.lane("main").active == 0


async def test_run_whose_caller_is_cancelled_still_returns_the_value_of_the_body(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for body in (returns_in_spite_of_all, swallows_its_cancellation):
            with trio.move_on_after(1) as scope:
                assert await lanes.run(body) == "value"
            assert not scope.cancelled_caught


async def test_run_whose_caller_is_cancelled_still_raises_the_exception_of_the_body(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope, pytest.raises(BodyError):
            await lanes.run(raises_when_cancelled)
        assert not scope.cancelled_caught


async def test_run_whose_caller_is_cancelled_does_not_care_for_a_timeout_or_a_reset(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(1) as scope:
            await lanes.run(cleans_up_shielded, timeout=0.5)
        assert scope.cancelled_caught
        assert trio.current_time() == 1.5

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def caller() -> None:
                with scope:
                    await lanes.run(returns_in_spite_of_all)

            nursery.start_soon(caller)
            await trio.sleep(1)
            scope.cancel()
            await wait_all_tasks_blocked()
            assert lanes.reset() == 1
        assert scope.cancelled_caught


async def test_run_in_a_cancelled_scope_submits_nothing(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.run(returns_at_once)
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.submit(returns_at_once)
        assert scope.cancelled_caught
        assert lanes.lane("main").statistics().started == 0


@pytest.mark.many_seeds(20)
async def test_a_value_that_comes_in_the_tick_of_the_cancellation_is_not_lost(
    autojump_clock: MockClock,
) -> None:
    ended = 0

    async def body() -> str:
        nonlocal ended
        await trio.sleep(1)
        ended += 1
        return "value"

    async with open_lanes({"main": 1}) as lanes:
        value = None
        with trio.move_on_at(1) as scope:
            value = await lanes.run(body)
        assert (value == "value") == (ended == 1) == (not scope.cancelled_caught)


async def test_run_whose_caller_a_hook_cancels_as_the_job_ends_keeps_the_rule(
    autojump_clock: MockClock,
) -> None:
    class Cancels:
        def job_finished(self, job: Job[Any]) -> None:
            scope.cancel()

    async def returns_later() -> str:
        await trio.sleep(1)
        return "value"

    async with open_lanes({"main": 1}, instruments=[Cancels()]) as lanes:
        for body in (returns_at_once, returns_later):
            with trio.CancelScope() as scope:
                assert await lanes.run(body) == "value"
            assert not scope.cancelled_caught
        with trio.CancelScope() as scope, pytest.raises(BodyError):
            await lanes.run(raises_at_once)
        assert not scope.cancelled_caught
        with trio.CancelScope() as scope:
            await lanes.run(trio.sleep, 5, timeout=1)
        assert scope.cancelled_caught
        lanes.pause()
        with trio.CancelScope() as scope:
            await lanes.run(trio.sleep, 5, queue_timeout=1)
        assert scope.cancelled_caught


@pytest.mark.many_seeds(20)
async def test_run_that_waited_for_room_is_told_however_soon_its_job_ends(
    autojump_clock: MockClock,
) -> None:
    # The job may end before the task that submitted it has its turn.
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=0)}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        with trio.fail_after(5):
            assert await lanes.run(returns_at_once) == "value"
            lanes.submit_nowait(trio.sleep, 1)
            with pytest.raises(BodyError):
                await lanes.run(raises_at_once)


@pytest.mark.many_seeds(20)
async def test_run_that_waited_for_room_and_is_cancelled_keeps_the_rule(
    autojump_clock: MockClock,
) -> None:
    ended = 0

    async def body() -> str:
        nonlocal ended
        ended += 1
        return "value"

    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=0)}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        value = None
        with trio.move_on_at(1) as scope:
            value = await lanes.run(body)
        await lanes.wait_idle()
        assert (value == "value") == (ended == 1) == (not scope.cancelled_caught)


@pytest.mark.trio_only("asyncio begins no task that is cancelled before")
@pytest.mark.many_seeds(5)
async def test_run_that_would_never_end_ends_only_when_its_job_has(
    autojump_clock: MockClock,
) -> None:
    """The job has started before that is known, since it had waited for room."""
    seen: list[str] = []

    async def child() -> None:
        try:
            await lanes.run(trio.sleep, 0, session="alice")
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            seen.append("child")

    async def parent() -> None:
        with pytest.raises(LaneDeadlockError):  # its own, or the child's, whichever waits last
            await lanes.run(child, lane="full")
        seen.append("parent")

    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes({"main": 2, "full": full}) as lanes:
        lanes.submit_nowait(trio.sleep, 1, lane="full")
        await lanes.run(parent, session="alice")
        assert seen == ["child", "parent"]
        assert trio.current_time() == 2


@pytest.mark.many_seeds(5)
async def test_run_that_would_never_end_does_not_wait_for_a_job_that_waits_for_its_caller_anyway(
    autojump_clock: MockClock,
) -> None:
    ended: dict[str, float] = {}

    async def child() -> None:
        try:
            with trio.CancelScope(shield=True):
                await lanes.run(trio.sleep, 1, session="alice")
        finally:
            ended["child"] = trio.current_time()

    async def parent() -> None:
        with pytest.raises(LaneDeadlockError):  # its own, or the child's, whichever waits last
            await lanes.run(child, lane="full")
        ended["parent"] = trio.current_time()

    full = LaneConfig(concurrency=1, max_waiting=0)
    async with open_lanes({"main": 2, "full": full}) as lanes:
        lanes.submit_nowait(trio.sleep, 1, lane="full")
        await lanes.run(parent, session="alice")
        await lanes.wait_idle()
        assert ended["parent"] == 1
        assert ended["child"] in (1, 2)


async def test_the_place_of_a_caller_that_was_just_cancelled_is_free(
    autojump_clock: MockClock,
) -> None:
    scope = trio.CancelScope()

    async def caller() -> None:
        with scope:
            await lanes.run(returns_at_once)

    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        async with trio.open_nursery() as nursery:
            lanes.submit_nowait(trio.sleep, 5)
            nursery.start_soon(caller)
            await wait_all_tasks_blocked()
            scope.cancel()  # nothing else has had its turn since
            await lanes.submit_nowait(returns_at_once).wait()
    assert trio.current_time() == 5
