"""What stays of a job when it has ended: its error with its traceback, and nothing else."""

import contextvars
import copy
import functools
import gc
import pickle
import traceback
import weakref
from collections.abc import Awaitable, Callable
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
    returns,
    returns_at_once,
)
from trio_lanes import (
    JobCancelledError,
    LaneConfig,
    LaneError,
    open_lanes,
)


@pytest.mark.parametrize("blocks", [False, True])
async def test_the_exception_is_the_same_object_with_the_traceback_that_left_the_job(
    autojump_clock: MockClock, blocks: bool
) -> None:
    error = BodyError()

    async def deep() -> None:
        if blocks:
            await trio.sleep(1)
        raise error

    async def body() -> None:
        await deep()

    def frames() -> list[str]:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await job.wait_done()
        assert job.exception is error
        assert frames() == ["body", "deep"]
        with pytest.raises(BodyError) as caught:
            await job.wait()
        assert caught.value is error
        assert frames()[-2:] == ["body", "deep"]
        assert error.__context__ is None
        assert error.__cause__ is None


@pytest.mark.parametrize("pause", [0, 1])
async def test_a_traceback_does_not_grow_with_each_waiter(
    pause: float, autojump_clock: MockClock
) -> None:
    async def body() -> None:
        if pause:
            await trio.sleep(pause)
        raise BodyError

    def length(error: BaseException) -> int:
        return len(traceback.extract_tb(error.__traceback__))

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        lengths = set()
        for _ in range(5):
            with pytest.raises(BodyError) as caught:
                await job.wait()
            lengths.add(length(caught.value))
        assert len(lengths) == 1

        cleared = lanes.lane("cron").submit_nowait(never_ends)
        cleared.cancel()
        lengths = set()
        for _ in range(5):
            with pytest.raises(JobCancelledError) as stopped:
                await cleared.wait()
            lengths.add(length(stopped.value))
        assert len(lengths) == 1


async def test_an_error_that_several_jobs_raise_has_the_frames_of_each(
    autojump_clock: MockClock,
) -> None:
    error = BodyError()

    async def one() -> None:
        raise error

    async def other() -> None:
        raise error

    async with open_lanes() as lanes:
        jobs = [lanes.submit_nowait(one), lanes.submit_nowait(other)]
        for _ in range(2):
            for job, name in zip(jobs, ("one", "other"), strict=True):
                with pytest.raises(BodyError) as caught:
                    await job.wait()
                frames = traceback.extract_tb(caught.value.__traceback__)
                # Python itself puts the frames of a second raise before the frames of the first.
                assert name in [frame.name for frame in frames]


async def test_run_raises_with_the_frames_of_the_job_and_of_its_caller(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:

        async def caller() -> None:
            await lanes.run(raises)

        with pytest.raises(BodyError) as caught:
            await caller()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "caller" in names
        assert names[-1] == "raises"


@pytest.mark.parametrize(
    "body", [returns, returns_at_once, raises, raises_at_once, never_ends, cleans_up_shielded]
)
@pytest.mark.parametrize("session", [None, "alice"])
async def test_nothing_keeps_an_ended_job_alive_but_its_holders(
    body: Callable[[], Awaitable[str]], session: str | None, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        blocker = lanes.submit_nowait(trio.sleep, 5, session=session)
        job = lanes.submit_nowait(body, session=session, timeout=5, warn_after=1)
        await blocker.wait()
        gc.collect()
        gc.disable()
        try:
            try:
                await job.wait()
            except Exception:
                pass
            ref = weakref.ref(job)
            del job
            await trio.sleep(1)
            assert ref() is None  # at once, without the help of the garbage collector
        finally:
            gc.enable()


@pytest.mark.parametrize("end", ["is accepted", "is cancelled"])
async def test_nothing_keeps_a_job_alive_that_has_waited_for_room(
    autojump_clock: MockClock, end: str
) -> None:
    refs: list[weakref.ref[Any]] = []

    async def body(payload: Payload) -> None:
        pass

    async def submits(seconds: float) -> None:
        payload = Payload()
        refs.append(weakref.ref(payload))
        with trio.move_on_after(seconds):
            job = await lanes.submit(body, payload)
            refs.append(weakref.ref(job))
            await job.wait()

    async with open_lanes({"main": LaneConfig(max_waiting=0)}) as lanes:
        for _ in range(2):
            blocker = lanes.submit_nowait(trio.sleep, 5)
            gc.collect()
            gc.disable()
            try:
                await submits(10 if end == "is accepted" else 1)
                await blocker.wait()
                assert len(refs) == (2 if end == "is accepted" else 1)
                assert [ref() for ref in refs] == [None] * len(refs)
            finally:
                gc.enable()
            refs.clear()


class Payload:
    """Much data."""


@pytest.mark.parametrize("end", ["returns", "is cancelled while it waits", "is reset", "times out"])
async def test_a_handle_that_is_kept_keeps_nothing_that_its_job_was_given(
    end: str, autojump_clock: MockClock
) -> None:
    variable: contextvars.ContextVar[Payload] = contextvars.ContextVar("variable")

    async def body(one: Payload, other: Payload) -> None:
        await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        if end == "is cancelled while it waits":
            lanes.submit_nowait(trio.sleep, 1)
        argument, in_function, in_context = Payload(), Payload(), Payload()
        fn = functools.partial(body, in_function)
        token = variable.set(in_context)
        job = lanes.submit_nowait(fn, argument, timeout=0.75 if end == "times out" else 5)
        variable.reset(token)
        refs = [weakref.ref(given) for given in (argument, in_function, in_context)]
        del argument, in_function, in_context, token, fn
        await trio.sleep(0.5)
        assert None not in [ref() for ref in refs]
        if end == "is cancelled while it waits":
            job.cancel()
        elif end == "is reset":
            lanes.reset()
        await job.wait_done()
        await trio.sleep(1)
        assert isinstance(job.exception, LaneError | None)
        gc.collect()
        assert [ref() for ref in refs] == [None, None, None]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_job_cannot_be_copied_since_its_place_is_one(
    autojump_clock: MockClock, how: Callable[[object], object]
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(returns) for _ in range(2)]
        for job in jobs:
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                how(job)
        await lanes.wait_idle()
        assert copy.copy(jobs) == jobs
