"""How a job ends, and what its handle and its waiters are told: every row, and its borders."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import outcome
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import (
    BodyError,
    a_nursery_that_never_ends,
    cancels_itself_and_raises,
    cancels_itself_and_returns,
    cancels_itself_and_waits,
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
    wraps_everything_in_a_group,
)
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneClearedError,
    LaneResetError,
    Lanes,
    QueueTimeoutError,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED


def cancel(lanes: Lanes) -> None:
    for job in lanes.jobs():
        if job.name != "blocker":
            assert job.cancel("why")


def clear(lanes: Lanes) -> None:
    assert lanes.clear("main", reason="why") == 1


def clear_session(lanes: Lanes) -> None:
    assert lanes.clear("session:alice", reason="why") == 1


def clear_nothing(lanes: Lanes) -> None:
    assert lanes.clear(reason="why") == 0


def reset(lanes: Lanes) -> None:
    assert lanes.reset("main") == 1


def reset_session(lanes: Lanes) -> None:
    assert lanes.reset("session:alice") == 1


def close(lanes: Lanes) -> None:
    lanes.close()


@attrs.frozen
class Row:
    """One way to end: what happens, a second after the submission too, and what it makes."""

    what: str
    body: Callable[[], Awaitable[str]]
    state: JobState
    error: type[BaseException] | None = None
    at: float = 2
    """When it has ended."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    after_a_second: Callable[[Lanes], None] = clear_nothing
    waits: bool = False
    """Whether there is something before it that ends after ten seconds."""


ROWS = [
    Row("returned", returns, SUCCEEDED),
    Row("returned at once", returns_at_once, SUCCEEDED, at=0),
    Row("returned at once, with a timeout", returns_at_once, SUCCEEDED, at=0,
        options={"timeout": 5}),
    Row("returned at once, with a timeout of 0", returns_at_once, SUCCEEDED, at=0,
        options={"timeout": 0}),
    Row("returned after a cancel", returns_in_spite_of_all, SUCCEEDED, after_a_second=cancel),
    Row("returned instead of its cancellation", swallows_its_cancellation, SUCCEEDED, at=1,
        after_a_second=cancel),
    Row("returned after its deadline", returns_in_spite_of_all, SUCCEEDED,
        options={"timeout": 1}),
    Row("returned instead of its timeout", swallows_its_cancellation, SUCCEEDED, at=1,
        options={"timeout": 1}),
    Row("cancelled itself and returned", cancels_itself_and_returns, SUCCEEDED, at=0),
    Row("returned after a close", returns, SUCCEEDED, after_a_second=close),
    Row("returned before its timeout", returns, SUCCEEDED, options={"timeout": 2.5}),
    Row("returned though it waited almost too long", returns, SUCCEEDED, waits=True, at=12,
        options={"queue_timeout": 10.5}),

    Row("raised", raises, FAILED, BodyError),
    Row("raised at once", raises_at_once, FAILED, BodyError, at=0),
    Row("raised at once, with a timeout", raises_at_once, FAILED, BodyError, at=0,
        options={"timeout": 5}),
    Row("raised a group", wraps_everything_in_a_group, FAILED, ExceptionGroup, at=0),
    Row("raised in its cancellation", raises_when_cancelled, FAILED, BodyError, at=1,
        after_a_second=cancel),
    Row("raised in its timeout", raises_when_cancelled, FAILED, BodyError, at=1,
        options={"timeout": 1}),
    Row("raised besides a cancel", raises_beside_its_cancellation, FAILED, ExceptionGroup,
        at=1, after_a_second=cancel),
    Row("raised besides a deadline", raises_beside_its_cancellation, FAILED, ExceptionGroup,
        at=1, options={"timeout": 1}),
    Row("cancelled itself and raised", cancels_itself_and_raises, FAILED, BodyError, at=0),

    Row("timed out", never_ends, FAILED, JobTimeoutError, at=1, options={"timeout": 1}),
    Row("timed out with children", a_nursery_that_never_ends, FAILED, JobTimeoutError, at=1,
        options={"timeout": 1}),
    Row("timed out and cleaned up", cleans_up_shielded, FAILED, JobTimeoutError,
        options={"timeout": 1}),
    Row("timed out and was cancelled later", cleans_up_shielded, FAILED, JobTimeoutError,
        at=1.5, options={"timeout": 0.5}, after_a_second=cancel),
    Row("had no time at all", never_ends, FAILED, JobTimeoutError, at=0,
        options={"timeout": 0}),
    Row("timed out counting from its start", never_ends, FAILED, JobTimeoutError, at=13,
        waits=True, options={"timeout": 3}),

    Row("waited too long", returns, CANCELLED, QueueTimeoutError, at=3, waits=True,
        options={"queue_timeout": 3}),
    Row("was not to wait", returns, CANCELLED, QueueTimeoutError, at=0, waits=True,
        options={"queue_timeout": 0}),
    Row("cleared", returns, CANCELLED, LaneClearedError, at=1, waits=True,
        after_a_second=clear),
    Row("cleared with its session", returns, CANCELLED, LaneClearedError, at=1, waits=True,
        after_a_second=clear_session, options={"session": "alice"}),
    Row("cancelled while it waited", returns, CANCELLED, JobCancelledError, at=1, waits=True,
        after_a_second=cancel),
    Row("cancelled while it waited in its session", returns, CANCELLED, JobCancelledError,
        at=1, waits=True, after_a_second=cancel, options={"session": "alice"}),
    Row("cancelled while it ran", never_ends, CANCELLED, JobCancelledError, at=1,
        after_a_second=cancel),
    Row("cancelled with children", a_nursery_that_never_ends, CANCELLED, JobCancelledError,
        at=1, after_a_second=cancel),
    Row("cancelled and cleaned up", cleans_up_shielded, CANCELLED, JobCancelledError,
        after_a_second=cancel),
    Row("cancelled before its timeout", cleans_up_shielded, CANCELLED, JobCancelledError,
        options={"timeout": 1.5}, after_a_second=cancel),
    Row("cancelled itself and waited", cancels_itself_and_waits, CANCELLED, JobCancelledError,
        at=0),
    Row("reset", returns_in_spite_of_all, CANCELLED, LaneResetError, at=1,
        after_a_second=reset),
    Row("reset, and raised later", raises_when_cancelled, CANCELLED, LaneResetError, at=1,
        after_a_second=reset),
    Row("reset with its session", cleans_up_shielded, CANCELLED, LaneResetError, at=1,
        after_a_second=reset_session, options={"session": "alice"}),
]  # fmt: skip

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)


async def submit_and_meddle(lanes: Lanes, row: Row, nursery: trio.Nursery) -> None:
    """Do all that a row says but submit its job."""
    if row.waits:
        lanes.submit_nowait(trio.sleep, 10, name="blocker")

    async def meddle() -> None:
        await trio.sleep(1)
        row.after_a_second(lanes)

    if row.after_a_second is not clear_nothing:
        nursery.start_soon(meddle)


async def told(awaitable: Awaitable[Any]) -> tuple[outcome.Outcome[Any], float]:
    """What comes of an awaitable, and when."""

    async def awaits() -> Any:
        return await awaitable

    return await outcome.acapture(awaits), trio.current_time()


@every_row
async def test_every_waiter_is_told_how_the_job_ended(row: Row, autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        await submit_and_meddle(lanes, row, nursery)
        job = lanes.submit_nowait(row.body, **row.options)
        everything: list[tuple[outcome.Outcome[Any], float]] = []

        async def wait() -> None:
            everything.append(await told(job.wait()))

        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await job.wait_done()
        assert (job.state, trio.current_time(), job.finished_at) == (row.state, row.at, row.at)
        assert job.done
        await wait_all_tasks_blocked()
        await wait()  # and again, when it is over
        assert len(everything) == 3

        for result, _ in everything:
            if row.error is None:
                assert result == outcome.Value("value")
            else:
                assert isinstance(result, outcome.Error)
                assert type(result.error) is row.error
                assert result.error is job.exception
        assert [when for _, when in everything[:2]] == [row.at, row.at]
        if row.error is None:
            assert job.exception is None
        assert (job.started_at is None) == (row.waits and row.state is CANCELLED)


@every_row
async def test_run_tells_its_caller_the_same(row: Row, autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        await submit_and_meddle(lanes, row, nursery)
        result, when = await told(lanes.run(row.body, **row.options))
        assert when == row.at
        if row.error is None:
            assert result == outcome.Value("value")
        else:
            assert isinstance(result, outcome.Error)
            assert type(result.error) is row.error


@every_row
async def test_every_job_settles_exactly_once_and_leaves_nothing(
    row: Row, autojump_clock: MockClock
) -> None:
    finished: list[tuple[Job[Any], JobState]] = []

    class Recorder:
        def job_finished(self, job: Job[Any]) -> None:
            finished.append((job, job.state))

    async with open_lanes({"main": 1}, instruments=[Recorder()]) as lanes:
        async with trio.open_nursery() as nursery:
            await submit_and_meddle(lanes, row, nursery)
            job = lanes.submit_nowait(row.body, **row.options)
            await job.wait_done()
            assert isinstance(job.exception, Exception | None)
        await lanes.wait_idle()
        await trio.sleep(10)  # what a body does after a reset is over, too
        assert [entry for entry in finished if entry[0] is job] == [(job, row.state)]
        assert job.cancel() is False
        assert lanes.clear() == lanes.reset() == 0
        assert (job.state, job.finished_at) == (row.state, row.at)
        statistics = lanes.statistics()
        assert (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0)
        assert statistics.lanes["main"].started == statistics.lanes["main"].finished
        assert (lanes.jobs(), lanes.sessions()) == ([], [])
        assert lanes.lane("main").limiter.borrowed_tokens == 0


# ---- what the errors say


async def test_the_errors_carry_what_caused_them(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        running = lanes.submit_nowait(never_ends, timeout=5)
        hurried = lanes.submit_nowait(returns, queue_timeout=1.5)
        cleared = lanes.submit_nowait(returns, session="alice")
        stopped = lanes.submit_nowait(returns)
        stopped.cancel("not needed")
        lanes.clear("session:alice", reason="starting over")
        await running.wait_done()
        given_up = lanes.submit_nowait(returns)
        lanes.reset("main")
        for job in (running, hurried, cleared, stopped, given_up):
            assert job.exception is not None
    assert isinstance(running.exception, JobTimeoutError)
    assert (running.exception.kind, running.exception.seconds) == ("timeout", 5)
    assert isinstance(hurried.exception, QueueTimeoutError)
    assert hurried.exception.seconds == 1.5
    assert isinstance(cleared.exception, LaneClearedError)
    assert (cleared.exception.lane, cleared.exception.reason) == (
        "session:alice", "starting over",
    )  # fmt: skip
    assert isinstance(stopped.exception, JobCancelledError)
    assert stopped.exception.reason == "not needed"
    assert isinstance(given_up.exception, LaneResetError)
    assert given_up.exception.lane == "main"


async def test_a_waiter_never_gets_the_cancelled_of_a_job(autojump_clock: MockClock) -> None:
    captured: list[BaseException] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            captured.append(cancelled)
            raise

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await trio.sleep(1)
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert len(captured) == 1


# ---- the states on the way


async def test_a_job_is_waiting_then_running_then_settled(autojump_clock: MockClock) -> None:
    seen: list[JobState] = []

    async def body() -> None:
        job = current_job()
        assert job is not None
        seen.append(job.state)
        assert not job.done
        await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        blocker = lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(0.5)
        job = lanes.submit_nowait(body)
        assert blocker.state is JobState.RUNNING
        assert job.state is JobState.WAITING
        assert (job.submitted_at, job.started_at, job.finished_at) == (0.5, None, None)
        assert job.exception is None
        assert not job.done
        await job.wait_started()
        assert (job.started_at, job.finished_at) == (1, None)
        await job.wait()
        assert (job.state, job.finished_at) == (SUCCEEDED, 2)
    assert seen == [JobState.RUNNING]


async def test_cancel_called_says_whether_it_was_asked_to_stop(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 2}) as lanes:
        stubborn = lanes.submit_nowait(returns_in_spite_of_all)
        late = lanes.submit_nowait(returns_in_spite_of_all, timeout=1)
        waiting = lanes.submit_nowait(returns)
        untouched = lanes.submit_nowait(returns)
        assert not any(job.cancel_called for job in (stubborn, late, waiting, untouched))
        waiting.cancel()
        await trio.sleep(0.5)
        stubborn.cancel()
        assert stubborn.cancel_called
        assert not late.cancel_called
        assert waiting.cancel_called
        await trio.sleep(1)
        assert late.cancel_called
        await lanes.wait_idle()
        assert stubborn.cancel_called
        assert not untouched.cancel_called


async def test_cancel_says_whether_the_job_had_not_ended(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(cleans_up_shielded)
        await trio.sleep(1)
        assert job.cancel("first") is True
        assert job.cancel("second") is True
        await job.wait_done()
        assert job.cancel() is False
        assert isinstance(job.exception, JobCancelledError)
        assert job.exception.reason == "first"


@pytest.mark.trio_only("asyncio begins no task that is cancelled before")
@pytest.mark.many_seeds(10)
async def test_a_job_cancelled_in_the_tick_of_its_start_either_runs_or_never_does(
    autojump_clock: MockClock,
) -> None:
    called = False

    async def body() -> None:
        nonlocal called
        called = True
        await trio.sleep_forever()

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        assert job.state is JobState.RUNNING  # it has its slot, and is about to be called
        assert job.cancel()
        await job.wait_done()
        assert job.state is CANCELLED
        assert isinstance(job.exception, JobCancelledError)
        assert await lanes.run(returns_at_once) == "value"
    assert called


class SplitFails(ExceptionGroup[BodyError]):
    """As a group does whose `derive` does not give its class all that this wants."""

    def split(self, *args: Any) -> Any:
        raise ZeroDivisionError


class TracebackFails(BodyError):
    def with_traceback(self, *args: Any) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    "error", [SplitFails("", [BodyError()]), TracebackFails()], ids=["split", "with_traceback"]
)
async def test_an_exception_whose_own_methods_fail_settles_its_job_like_any(
    autojump_clock: MockClock, error: Exception, blocks: bool
) -> None:
    async def body() -> None:
        if blocks:
            await trio.sleep(1)
        raise error

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        with pytest.raises(type(error)) as told:
            await job.wait()
        assert told.value is error
        assert job.state is FAILED
        await lanes.run(trio.sleep, 1)


class Failures(ExceptionGroup[BodyError]):
    """As an application's own group: without a `derive`, and with a field."""


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("cls", [Failures, SplitFails])
@pytest.mark.parametrize("ended_by", ["cancel", "timeout"])
async def test_a_group_that_a_body_raises_when_it_is_stopped_is_that_very_group(
    autojump_clock: MockClock, ended_by: str, cls: type[Failures | SplitFails], blocks: bool
) -> None:
    error = cls("two things failed", [BodyError(), ExceptionGroup("", [BodyError()])])

    async def body() -> None:
        job = current_job()
        assert job is not None
        if ended_by == "cancel":
            job.cancel()
        try:
            if blocks:
                await trio.sleep_forever()
        finally:
            raise error

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body, timeout=1 if ended_by == "timeout" else math.inf)
        with pytest.raises(ExceptionGroup) as told:
            await job.wait()
        assert told.value is error
        assert job.state is FAILED
        await lanes.run(trio.sleep, 1)


@pytest.mark.trio_only("groups with cancellations are Trio's")
@pytest.mark.parametrize("blocks", [False, True])
async def test_a_group_that_also_holds_a_cancellation_is_given_without_it(
    autojump_clock: MockClock, blocks: bool
) -> None:
    async def body() -> None:
        job = current_job()
        assert job is not None
        job.cancel()
        if blocks:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            nested = BaseExceptionGroup("nested", [cancelled, BodyError()])
            raise BaseExceptionGroup("all", [nested, BodyError()]) from None

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        await job.wait_done()
        assert job.state is FAILED
        assert isinstance(job.exception, ExceptionGroup)
        assert job.exception.subgroup(trio.Cancelled) is None
        assert len(job.exception.exceptions) == 2
