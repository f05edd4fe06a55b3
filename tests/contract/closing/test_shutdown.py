"""What signals do to lanes: real signals, raised in this process, on virtual time."""

from __future__ import annotations

import logging
import math
import os
import signal
from functools import partial
from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import cleans_up_shielded, never_ends, returns, returns_in_spite_of_all
from tests.support.signals import hear
from tests.support.track import Track
from trio_lanes import (
    DrainReport,
    JobCancelledError,
    JobState,
    LaneResetError,
    LanesClosedError,
    open_lanes,
    shutdown_on_signals,
)

ALL = (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2)


async def stuck() -> None:
    """Outlive every grace that is given here."""
    with trio.CancelScope(shield=True):
        await trio.sleep(100)


# ---- the first signal


@pytest.mark.parametrize("signum", [SIGINT, SIGTERM])
async def test_the_first_signal_closes_and_lets_the_work_end(
    signum: int, autojump_clock: MockClock
) -> None:
    track = Track()
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=10))
        jobs = [lanes.submit_nowait(track.sleep, n) for n in range(3)]
        await trio.sleep(0.5)
        await hear(signum)
        await lanes.wait_closing()
        with pytest.raises(LanesClosedError, match="draining") as caught:
            lanes.submit_nowait(returns)
        assert caught.value.retry_after is None
        assert not any(job.cancel_called for job in jobs)
    assert track.ended == [0, 1, 2]
    assert trio.current_time() == 3


async def test_what_outlives_the_grace_is_cancelled_and_then_given_up(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        ended, stuck_job = lanes.submit_nowait(never_ends), lanes.submit_nowait(stuck)
        waiting = lanes.submit_nowait(returns)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=20))
            await hear(SIGTERM)
            await ended.wait_done()
            assert trio.current_time() == 20
            await stuck_job.wait_done()
        assert trio.current_time() == 25  # the default of cancel_grace
        assert type(ended.exception) is JobCancelledError
        assert type(stuck_job.exception) is LaneResetError
        assert type(waiting.exception) is LanesClosedError


async def test_refused_callers_are_told_when_to_try_again(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=10, retry_after=7))
        lanes.submit_nowait(returns)
        await hear(SIGTERM)
        with pytest.raises(LanesClosedError) as caught:
            await lanes.run(returns)
        assert caught.value.retry_after == 7


async def test_a_signal_right_after_the_start_is_heard(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=10))
        signal.raise_signal(SIGTERM)  # nothing has been scheduled since it started
        await lanes.wait_closing()


async def test_with_nothing_to_do_the_first_signal_ends_it_at_once(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery, open_lanes() as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=math.inf))
        await hear(SIGTERM)
    assert trio.current_time() == 0


# ---- the second signal


@pytest.mark.parametrize("second", [SIGINT, SIGTERM])
@pytest.mark.parametrize("grace", [10, math.inf])
async def test_the_second_signal_cancels_the_jobs_that_are_left(
    second: int, grace: float, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 2}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=grace))
        running = [lanes.submit_nowait(body) for body in (never_ends, cleans_up_shielded)]
        waiting = lanes.submit_nowait(returns, session="alice")
        await trio.sleep(1)
        await hear(SIGINT)
        await trio.sleep(1)
        assert not any(job.cancel_called for job in running)
        await hear(second)
    for job in running:
        assert type(job.exception) is JobCancelledError
    assert type(waiting.exception) is LanesClosedError
    assert trio.current_time() == 3  # after one second of cleaning up


@pytest.mark.many_seeds(10)
async def test_two_signals_at_the_same_moment_are_two(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=math.inf))
        job = lanes.submit_nowait(never_ends)
        signal.raise_signal(SIGINT)
        signal.raise_signal(SIGTERM)
    assert type(job.exception) is JobCancelledError


async def test_what_outlives_the_second_signal_is_given_up_after_the_cancel_grace(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(stuck)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=math.inf, cancel_grace=2))
            await hear(SIGTERM)
            await hear(SIGTERM)
        assert trio.current_time() == 2
        assert type(job.exception) is LaneResetError


async def test_further_signals_change_nothing(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=10, cancel_grace=10))
        job = lanes.submit_nowait(returns_in_spite_of_all)
        for _ in range(5):
            await hear(SIGINT)
        assert job.state is JobState.RUNNING
    assert await job.wait() == "value"


async def test_a_second_signal_after_the_grace_does_not_prolong_the_cancel_grace(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(stuck)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=10, cancel_grace=5))
            await hear(SIGTERM)
            await trio.sleep(13)
            await hear(SIGTERM)
            await job.wait_done()
        assert trio.current_time() == 15


# ---- how it ends


@pytest.mark.many_seeds(10)
async def test_it_returns_how_the_work_ended(autojump_clock: MockClock) -> None:
    reports: list[DrainReport | None] = []

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        reports.append(await shutdown_on_signals(lanes, grace=10, task_status=task_status))

    async with trio.open_nursery() as nursery, open_lanes({"main": 2}) as lanes:
        await nursery.start(listen)
        lanes.submit_nowait(returns)
        lanes.submit_nowait(never_ends)
        await hear(SIGTERM)
    assert reports == [DrainReport(finished=1, cancelled=1, abandoned=0)]


@pytest.mark.many_seeds(10)
async def test_it_need_not_be_in_a_task_of_its_own(autojump_clock: MockClock) -> None:
    async def impatient() -> None:
        await trio.sleep(1)
        await hear(SIGINT)
        await hear(SIGINT)

    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(never_ends)
        nursery.start_soon(impatient)
        report = await shutdown_on_signals(lanes, grace=10)
        assert report == DrainReport(finished=0, cancelled=1, abandoned=0)


@pytest.mark.parametrize("how", ["leaving the block", "close", "drain"])
async def test_it_ends_as_well_when_the_lanes_end_without_a_signal(
    how: str, autojump_clock: MockClock
) -> None:
    reports: list[DrainReport | None] = []

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        reports.append(await shutdown_on_signals(lanes, grace=10, task_status=task_status))
        assert trio.current_time() == 2

    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(listen)
        lanes.submit_nowait(returns)
        if how == "close":
            lanes.close()
        elif how == "drain":
            await lanes.drain()
    assert reports == [None]


async def test_lanes_that_other_code_closed_are_still_drained_and_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(partial(shutdown_on_signals, lanes, grace=math.inf))
        job = lanes.submit_nowait(never_ends)
        lanes.close("for another reason", retry_after=1)
        await hear(SIGTERM)
        with pytest.raises(LanesClosedError, match="for another reason"):
            lanes.submit_nowait(returns)
        assert not job.cancel_called
        await hear(SIGTERM)
    assert type(job.exception) is JobCancelledError


async def test_signals_do_what_they_did_before_when_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    before = [signal.getsignal(signum) for signum in ALL]
    async with trio.open_nursery() as nursery, open_lanes() as lanes:
        await nursery.start(
            partial(
                shutdown_on_signals,
                lanes,
                grace=10,
                reset_signal=SIGUSR1,
                reload_signal=SIGHUP,
                reload=dict,
            )
        )
        changed = [signal.getsignal(signum) for signum in ALL]
        assert [old is new for old, new in zip(before, changed, strict=True)] == [
            False, False, False, False, True,
        ]  # fmt: skip
        await hear(SIGTERM)
    assert [signal.getsignal(signum) for signum in ALL] == before


@pytest.mark.parametrize("signalled", [False, True])
async def test_cancelling_it_leaves_the_work_running_and_the_signals_as_they_were(
    signalled: bool, autojump_clock: MockClock
) -> None:
    before = signal.getsignal(SIGTERM)
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(returns)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=10))
            if signalled:
                await hear(SIGTERM)
            nursery.cancel_scope.cancel()
        assert signal.getsignal(SIGTERM) is before
        assert not job.cancel_called
        if signalled:
            with pytest.raises(LanesClosedError):
                lanes.submit_nowait(returns)
        else:
            assert await lanes.run(returns) == "value"
    assert await job.wait() == "value"


async def test_other_signals_are_left_alone(autojump_clock: MockClock) -> None:
    heard: list[int] = []
    before = signal.signal(SIGINT, lambda signum, frame: heard.append(signum))
    try:
        async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
            await nursery.start(
                partial(shutdown_on_signals, lanes, grace=10, signals=iter([SIGUSR2, SIGTERM]))
            )
            await hear(SIGINT)
            assert await lanes.run(returns) == "value"
            await hear(SIGUSR2)
    finally:
        signal.signal(SIGINT, before)
    assert heard == [SIGINT]


async def test_the_log_tells_the_story(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")
    realtime = signal.SIGRTMIN + 1
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(
            partial(shutdown_on_signals, lanes, grace=10, signals=[SIGTERM, realtime])
        )
        lanes.submit_nowait(cleans_up_shielded)
        for signum in (SIGTERM, realtime, SIGTERM):
            await hear(signum)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [one for one in told if not one[1].startswith("lanes opened")] == [
        ("INFO", "SIGTERM: draining, with 10 s of grace"),
        ("WARNING", f"signal {realtime:d}: cancelling the jobs that are left"),
        ("INFO", "drained: DrainReport(finished=0, cancelled=1, abandoned=0)"),
    ]


# ---- arguments


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"grace": -1}, ValueError, "grace"),
        ({"grace": None}, TypeError, "grace"),
        ({"grace": math.nan}, ValueError, "grace"),
        ({"cancel_grace": -1}, ValueError, "cancel_grace"),
        ({"cancel_grace": "5"}, TypeError, "cancel_grace"),
        ({"retry_after": math.inf}, ValueError, "retry_after"),
        ({"retry_after": "soon"}, TypeError, "retry_after"),
        ({"signals": ()}, ValueError, "signals"),
        ({"signals": SIGTERM}, TypeError, "signals"),
        ({"signals": "SIGTERM"}, TypeError, "signals"),
        ({"signals": ["SIGTERM"]}, TypeError, "signals"),
        ({"signals": [True]}, TypeError, "signals"),
        ({"signals": [0]}, ValueError, "signals"),
        ({"signals": [10_000]}, ValueError, "signals"),
        ({"signals": [SIGTERM, SIGKILL]}, ValueError, "signals.*SIGKILL"),
        ({"signals": [SIGSTOP]}, ValueError, "signals.*SIGSTOP"),
        ({"reset_signal": "SIGUSR1"}, TypeError, "reset_signal"),
        ({"reset_signal": SIGKILL}, ValueError, "reset_signal"),
        ({"reset_signal": SIGTERM}, ValueError, "signals and reset_signal both name SIGTERM"),
        (
            {"reset_signal": SIGHUP, "reload_signal": SIGHUP, "reload": dict},
            ValueError,
            "reset_signal and reload_signal both name SIGHUP",
        ),
        ({"reload_signal": SIGHUP}, ValueError, "reload"),
        ({"reload": dict}, ValueError, "reload_signal"),
        ({"reload_signal": SIGHUP, "reload": {"main": 1}}, TypeError, "reload"),
        ({"lanes": {"main": 4}}, TypeError, "lanes"),
    ],
)
async def test_a_bad_argument_is_named_and_nothing_has_changed(
    options: dict[str, Any], error: type[Exception], named: str, autojump_clock: MockClock
) -> None:
    before = [signal.getsignal(signum) for signum in ALL]
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        arguments = {"lanes": lanes, "grace": 10, **options}
        with pytest.raises(error, match=named):
            await nursery.start(partial(shutdown_on_signals, **arguments))
        assert [signal.getsignal(signum) for signum in ALL] == before
        assert await lanes.run(returns) == "value"


async def test_a_signal_may_be_named_twice_among_the_same(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, open_lanes() as lanes:
        await nursery.start(
            partial(shutdown_on_signals, lanes, grace=10, signals=[SIGTERM, SIGTERM])
        )
        os.kill(os.getpid(), SIGTERM)
        await lanes.wait_closing()


def test_outside_of_the_main_thread_it_says_so_and_nothing_has_changed() -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            with pytest.raises(RuntimeError, match="main thread"):
                await shutdown_on_signals(lanes, grace=10)
            assert await lanes.run(returns) == "value"

    trio.run(
        trio.to_thread.run_sync, partial(trio.run, main, clock=MockClock(autojump_threshold=0))
    )
