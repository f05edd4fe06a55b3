"""An exception in the middle of an act ends the lanes with an error, and leaves no lane dead."""

from __future__ import annotations

import inspect
import sys

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    LaneDeadlockError,
    Lanes,
    LanesClosedError,
    current_job,
    open_lanes,
)


async def nothing() -> None:
    pass


def submit_for_ever(lanes: Lanes, handles: list[Job[None]]) -> None:
    """Submit until the stack is too deep, which is first so in the middle of a transition."""
    handles.append(lanes.submit_nowait(nothing, session=f"{len(handles)}"))
    submit_for_ever(lanes, handles)


async def test_lanes_end_with_an_error_where_a_stack_was_too_deep_to_submit(
    autojump_clock: MockClock,
) -> None:
    handles: list[Job[None]] = []

    async def recurses() -> None:
        submit_for_ever(lanes, handles)

    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off") as caught:
        async with open_lanes({"main": 2}) as lanes:
            job = lanes.submit_nowait(recurses)
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, RecursionError)
    assert isinstance(job.exception, RecursionError)
    assert {one.state for one in handles} == {JobState.SUCCEEDED, JobState.CANCELLED}
    assert isinstance(handles[-1].exception, LanesClosedError)


async def test_lanes_end_with_an_error_where_a_stack_was_too_deep_to_cancel(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off"):
        async with open_lanes({"main": 1}) as lanes:
            lanes.pause()
            jobs = [lanes.submit_nowait(nothing, session=f"{n}") for n in range(2_000)]
            left = iter(jobs)

            def cancel_for_ever() -> None:
                next(left).cancel()
                cancel_for_ever()

            with pytest.raises(RecursionError):
                cancel_for_ever()
            lanes.resume()  # there may have been no stack left to end the lanes then
            await trio.sleep_forever()
    assert {job.state for job in jobs} == {JobState.CANCELLED}


class Owner:
    """Fails as a key when it is told to."""

    fails = False

    def __hash__(self) -> int:
        if self.fails:
            raise ValueError("no hash today")
        return 1


async def test_lanes_that_broke_down_let_go_of_all_that_waits_shielded(
    autojump_clock: MockClock,
) -> None:
    shared = trio.CapacityLimiter(1)
    ended: list[str] = []

    async def wants_its_slot_back() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(1)
        ended.append("with a slot that never came")

    async def lends() -> None:
        job = current_job()
        assert job is not None
        try:
            async with job.yield_slot():
                await trio.sleep_forever()
        finally:
            ended.append("lending")

    owner = Owner()
    config = {
        "main": 1,
        "side": 1,
        "shared": LaneConfig(limiter=shared),
        "fair": LaneConfig(fair=True, paused=True),
    }
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off"):
        async with shared, open_lanes(config) as lanes:
            lanes.submit_nowait(nothing, lane="shared")  # whose token is asked for
            lanes.pause_for("side", 1_000)  # until a timer
            lanes.submit_nowait(wants_its_slot_back)
            lanes.submit_nowait(trio.sleep_forever)
            await trio.sleep(2)
            lanes.configure({"third": 1})
            lanes.submit_nowait(lends, lane="third")
            lanes.submit_nowait(nothing, lane="fair", owner=owner)
            await wait_all_tasks_blocked()
            owner.fails = True
            with pytest.raises(ValueError, match="no hash today"):
                lanes.resume("fair")
            await trio.sleep_forever()
    assert sorted(ended) == ["lending", "with a slot that never came"]
    assert trio.current_time() == 2.0


async def test_a_wait_for_which_the_stack_is_too_deep_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    limit = sys.getrecursionlimit()
    errors: list[type[Exception]] = []

    async def waits() -> None:
        child = lanes.submit_nowait(nothing, session="alice")
        depth = len(inspect.stack(0))
        while LaneDeadlockError not in errors:  # never parks: the child is behind this job
            try:
                sys.setrecursionlimit(depth + len(errors))
                await child.wait()
            except (RecursionError, LaneDeadlockError) as error:
                errors.append(type(error))
            finally:
                sys.setrecursionlimit(limit)

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(waits, session="alice")
    assert errors == [RecursionError] * (len(errors) - 1) + [LaneDeadlockError]
    assert len(errors) > 10


async def test_an_owner_that_is_no_key_any_more_ends_the_lanes_with_its_exception(
    autojump_clock: MockClock,
) -> None:
    owner = Owner()
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no hash today")):
        async with open_lanes({"main": LaneConfig(fair=True)}) as lanes:
            lanes.submit_nowait(trio.sleep, 1)
            job = lanes.submit_nowait(trio.sleep, 1, owner=owner)
            await trio.sleep(0.5)
            owner.fails = True
            await trio.sleep_forever()
    assert trio.current_time() == 1.0
    assert isinstance(job.exception, LanesClosedError)


async def test_a_job_whose_owner_is_no_key_any_more_cannot_be_cancelled_but_settles(
    autojump_clock: MockClock,
) -> None:
    owner = Owner()
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off") as caught:
        async with open_lanes({"main": LaneConfig(fair=True, paused=True)}) as lanes:
            job = lanes.submit_nowait(trio.sleep, 1, owner=owner)
            owner.fails = True
            with pytest.raises(ValueError, match="no hash today") as raised:
                job.cancel()
            await trio.sleep_forever()
    assert caught.value.__cause__ is raised.value
    assert isinstance(job.exception, LanesClosedError)


class LateOwner:
    """An owner of a job whose hash can be had until it breaks."""

    def __init__(self) -> None:
        self.is_broken = False

    def __hash__(self) -> int:
        if self.is_broken:
            raise ValueError("no hash any more")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


async def test_the_waiters_of_a_job_are_told_although_the_batch_that_ended_it_was_broken_off(
    autojump_clock: MockClock,
) -> None:
    owner = LateOwner()
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off"):
        async with open_lanes({"main": LaneConfig(fair=True)}) as lanes:
            lanes.pause()
            first = lanes.submit_nowait(nothing)
            lanes.submit_nowait(nothing, owner=owner)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.wait_done)
                await wait_all_tasks_blocked()
                owner.is_broken = True
                with pytest.raises(ValueError, match="no hash"):
                    lanes.clear()
                with trio.CancelScope(shield=True):
                    await first.wait_done()
    assert first.state is JobState.CANCELLED


async def test_a_job_that_was_started_settles_although_the_batch_was_broken_off(
    autojump_clock: MockClock,
) -> None:
    owner = LateOwner()
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off"):
        async with open_lanes({"main": LaneConfig(concurrency=2, fair=True)}) as lanes:
            lanes.pause()
            first = lanes.submit_nowait(trio.sleep_forever)
            lanes.submit_nowait(nothing, owner=owner)
            owner.is_broken = True
            with pytest.raises(ValueError, match="no hash"):
                lanes.resume()
    assert first.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("whose", "how"),
    [
        ("lane", "a token was taken"),
        ("lane", "total_tokens was set"),
        ("session", "a token was taken"),
    ],
)
async def test_a_limiter_that_other_code_changed_is_an_error_that_names_the_lane_and_the_cure(
    autojump_clock: MockClock, whose: str, how: str
) -> None:
    with pytest.raises(RuntimeError, match="the lanes have ended: an act was broken off") as left:
        async with open_lanes({"main": 1}) as lanes:
            name = "main" if whose == "lane" else "session:alice"
            limiter = (lanes.lane("main") if whose == "lane" else lanes.session("alice")).limiter
            if how == "a token was taken":
                limiter.acquire_nowait()
            else:
                limiter.total_tokens = 0
            with pytest.raises(RuntimeError, match=f"{name}.*is for reading.*LaneConfig") as told:
                lanes.submit_nowait(nothing, session="alice")
            await trio.sleep_forever()
    assert left.value.__cause__ is told.value
    assert lanes.statistics().waiting == 0
