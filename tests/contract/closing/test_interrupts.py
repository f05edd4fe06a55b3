"""Ctrl-C: real SIGINTs, in jobs, in waits, and at very many points inside the library."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trio_lanes
from tests.support.bodies import cleans_up_shielded, never_ends, raises, returns, returns_at_once
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneError,
    Lanes,
    LanesClosedError,
    open_lanes,
)

interrupts = pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True)


def run(main: Callable[[], Awaitable[object]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


def busy() -> None:
    """A loop that only an interrupt ends, and that does not end well otherwise."""
    signal.raise_signal(signal.SIGINT)
    for _ in range(100_000):
        pass
    raise AssertionError("was not interrupted")


async def busy_at_once() -> None:
    busy()


async def busy_later() -> None:
    await trio.sleep(1)
    busy()


async def busy_below() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy_later)


@pytest.mark.parametrize("body", [busy_at_once, busy_later, busy_below])
def test_ctrl_c_breaks_a_busy_loop_in_a_job_and_everybody_is_told(
    body: Callable[[], Awaitable[None]],
) -> None:
    told: list[type[BaseException]] = []
    jobs: list[Job[Any]] = []

    async def waiter(job: Job[Any]) -> None:
        with pytest.raises(LaneError) as caught:
            await job.wait()
        told.append(type(caught.value))

    async def main() -> None:
        async with trio.open_nursery() as waiters:
            async with open_lanes({"main": 2}) as lanes:
                jobs.append(lanes.submit_nowait(cleans_up_shielded))
                await trio.sleep(0.5)
                jobs.append(lanes.submit_nowait(body))
                jobs.append(lanes.submit_nowait(returns, session="alice"))
                for job in jobs:
                    waiters.start_soon(waiter, job)
                await trio.sleep_forever()

    with interrupts:
        run(main)
    running, interrupted, waiting = jobs
    assert sorted(told, key=str) == sorted(
        [JobCancelledError, JobCancelledError, LanesClosedError], key=str
    )
    assert interrupted.state is JobState.FAILED
    assert isinstance(interrupted.exception, JobCancelledError)
    assert interrupts.matches(interrupted.exception.__cause__)
    assert (running.state, waiting.state) == (JobState.CANCELLED, JobState.CANCELLED)
    assert type(waiting.exception) is LanesClosedError


@pytest.mark.parametrize("how", ["wait", "run", "wait_idle", "leave", "room"])
def test_ctrl_c_while_everybody_waits_tells_every_waiter_and_ends_the_run(how: str) -> None:
    told: list[type[BaseException]] = []
    jobs: list[Job[Any]] = []

    async def waiter(job: Job[Any]) -> None:
        with pytest.raises(LaneError) as caught:
            await job.wait()
        told.append(type(caught.value))

    async def main() -> None:
        async with trio.open_nursery() as waiters:
            waiters.start_soon(signal_when_all_is_quiet)
            full = LaneConfig(concurrency=1, max_waiting=2)
            async with open_lanes({"main": full}) as lanes:
                jobs.append(lanes.submit_nowait(cleans_up_shielded))
                jobs.append(lanes.submit_nowait(returns))
                jobs.append(lanes.submit_nowait(returns, session="alice"))
                for job in jobs:
                    waiters.start_soon(waiter, job)
                if how == "wait":
                    await jobs[0].wait()
                elif how == "run":
                    lanes.configure({"main": LaneConfig(concurrency=1)})
                    await lanes.run(returns)
                elif how == "wait_idle":
                    await lanes.wait_idle()
                elif how == "room":
                    await lanes.submit(returns)

    @trio.lowlevel.enable_ki_protection  # so that it finds the main task, which waits
    async def signal_when_all_is_quiet() -> None:
        await trio.sleep(5)
        signal.raise_signal(signal.SIGINT)

    with interrupts:
        run(main)
    assert sorted(told, key=str) == sorted(
        [JobCancelledError, LanesClosedError, LanesClosedError], key=str
    )
    assert all(job.done for job in jobs)


def test_ctrl_c_in_the_callers_code_between_two_calls_leaves_like_any_error() -> None:
    jobs: list[Job[Any]] = []

    async def main() -> None:
        async with open_lanes({"main": 1}) as lanes:
            jobs.append(lanes.submit_nowait(never_ends))
            jobs.append(lanes.submit_nowait(returns))
            await jobs[0].wait_started()
            busy()

    with interrupts:
        run(main)
    assert [type(job.exception) for job in jobs] == [JobCancelledError, LanesClosedError]


class Recorder:
    """The jobs that were accepted and that settled, and how often."""

    def __init__(self) -> None:
        self.submitted: list[Job[Any]] = []
        self.finished: list[Job[Any]] = []

    def job_submitted(self, job: Job[Any]) -> None:
        self.submitted.append(job)

    def job_finished(self, job: Job[Any]) -> None:
        self.finished.append(job)


HOOKS = [
    "job_submitted", "job_forwarded", "job_started", "job_finished", "job_waiting_long",
    "lane_idle", "lane_empty", "lane_paused", "lane_resumed", "lane_cleared", "lane_reset",
    "lanes_closing",
]  # fmt: skip


async def many_things(lanes: Lanes) -> None:
    """A story in which every verb has a part."""
    main, alice = lanes.lane("main"), lanes.session("alice")
    async with trio.open_nursery() as nursery:
        first = alice.submit_nowait(trio.sleep, 3)
        second = alice.submit_nowait(returns, timeout=1)
        third = alice.submit_nowait(never_ends, queue_timeout=2)
        second.priority = 5
        nursery.start_soon(lanes.run, returns_at_once)
        nursery.start_soon(lanes.wait_room, 1)
        nursery.start_soon(lanes.submit, returns)
        main.pause()
        await trio.sleep(1)
        main.resume()
        lanes.start_soon(returns_at_once, session="bob")
        lanes.configure({"cron": 2, "other": 1})
        lanes.lane("other").submit_nowait(cleans_up_shielded)
        await trio.sleep(1)
        lanes.reset("other")
        main.concurrency = 2
        third.cancel()
        await first.wait_done()
        lanes.submit_nowait(raises, lane="cron")
        lanes.submit_nowait(never_ends, lane="cron")
        lanes.submit_nowait(never_ends, lane="cron")
        lanes.clear("cron")
        with trio.move_on_after(1):
            await lanes.run(never_ends)
        await lanes.wait_active("main", timeout=1)
    for job in (second, third):
        await job.wait_done()
    lanes.submit_nowait(never_ends, lane="cron")
    await lanes.drain(grace=1, cancel_grace=1)


def check_all_is_settled(recorder: Recorder, lanes: Lanes) -> None:
    assert set(recorder.submitted) == set(recorder.finished)
    assert len(recorder.finished) == len(set(recorder.finished))
    assert all(job.done for job in recorder.submitted)
    for job in recorder.submitted:
        assert job.exception is None or isinstance(job.exception, Exception)
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)
    assert lanes.jobs() == lanes.sessions() == []
    for name in statistics.lanes:
        assert lanes.lane(name).limiter.borrowed_tokens == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_ctrl_c_inside_a_hook_waits_until_the_transition_is_over(hook: str) -> None:
    recorder = Recorder()
    opened: list[Lanes] = []
    went_on: list[str] = []

    class Interrupter:
        def interrupt(self, *args: object) -> None:
            if not went_on:
                signal.raise_signal(signal.SIGINT)
                went_on.append(hook)

    interrupter = Interrupter()
    setattr(interrupter, hook, interrupter.interrupt)

    async def main() -> None:
        async with open_lanes({"main": 1, "cron": 1}, instruments=[recorder, interrupter]) as lanes:
            opened.append(lanes)
            await many_things(lanes)

    with interrupts:
        run(main)
    assert went_on == [hook]
    assert recorder.submitted
    check_all_is_settled(recorder, *opened)


LIBRARY = os.path.dirname(trio_lanes.__file__)


class Mine:
    """Goes off at the n-th call inside the library: of one of its functions, or of C's by them.

    These are where Python looks for signals. It does not where a coroutine is resumed.
    """

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(LIBRARY) or event == "return":
            return
        if event == "call" and code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
            return
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


Story = Callable[[Lanes, Callable[[], None]], Awaitable[None]]
"""Takes lanes, and what to call when the part of it begins that is to be interrupted."""


async def does_many_things(lanes: Lanes, arm: Callable[[], None]) -> None:
    arm()
    await many_things(lanes)


async def drains(lanes: Lanes, arm: Callable[[], None]) -> None:
    for session in (None, "alice"):
        lanes.submit_nowait(never_ends, session=session)
    await trio.sleep(1)
    arm()
    await lanes.drain(grace=1, cancel_grace=1)


async def fails(lanes: Lanes, arm: Callable[[], None]) -> None:
    for session in (None, "alice"):
        lanes.submit_nowait(never_ends, session=session)
    await trio.sleep(1)
    arm()
    raise OSError


def was_interrupted_at(n: int, story: Story) -> bool:
    """Whether the story was long enough to be interrupted there. Checks that all is settled."""
    recorder = Recorder()
    opened: list[Lanes] = []
    mine = Mine(n)

    async def main() -> None:
        try:
            async with open_lanes({"main": 1, "cron": 1}, instruments=[recorder]) as lanes:
                opened.append(lanes)
                await story(lanes, lambda: sys.setprofile(mine))
        finally:
            sys.setprofile(None)

    try:
        run(main)
    except BaseExceptionGroup as group:
        _, others = group.split((KeyboardInterrupt, OSError))
        assert others is None
    except KeyboardInterrupt:
        pass
    if recorder.submitted:
        check_all_is_settled(recorder, *opened)
    return mine.left <= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "step"),
    # a prime, so that passages that come again are not interrupted at the same place again
    [(does_many_things, 29), (drains, 1), (fails, 1)],
)
def test_ctrl_c_at_any_point_corrupts_nothing(story: Story, step: int) -> None:
    n = 1
    while was_interrupted_at(n, story):
        n += step
    assert n > 50


@pytest.mark.parametrize("way", ["__aenter__", "__aexit__"])
def test_ctrl_c_on_the_way_into_or_out_of_the_block_leaves_it_like_any_error(way: str) -> None:
    recorder = Recorder()
    opened: list[Lanes] = []
    hits: list[str] = []

    def goes_off(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename == contextlib.__file__ and code.co_name == way and not hits:
            hits.append(event)
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        sys.setprofile(goes_off)
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            opened.append(lanes)
            lanes.submit_nowait(never_ends)
            lanes.submit_nowait(never_ends)
            await trio.sleep(1)
            lanes.reset()
            lanes.clear()

    try:
        with interrupts:
            run(main)
    finally:
        sys.setprofile(None)
    assert len(hits) == 1
    if recorder.submitted:
        check_all_is_settled(recorder, *opened)


def test_ctrl_c_while_an_unretrieved_failure_is_logged_is_not_lost() -> None:
    """The last reference goes in the caller's code, and logging may take long."""
    logged: list[logging.LogRecord] = []

    class Interrupter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            signal.raise_signal(signal.SIGINT)
            logged.append(record)

    async def main() -> None:
        async with open_lanes() as lanes:
            job = lanes.submit_nowait(raises)
            await job.wait_done()
            del job
            await trio.sleep(1)
            raise AssertionError("was not interrupted")

    handler = Interrupter(logging.ERROR)
    logger = logging.getLogger("trio_lanes")
    logger.addHandler(handler)
    try:
        with interrupts:
            run(main)
    finally:
        logger.removeHandler(handler)
    assert len(logged) == 1
