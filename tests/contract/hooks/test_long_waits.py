"""Warnings about long waits: what a job is told, and how little goes to the log."""

import contextvars
import logging
import math

import pytest
import trio
from trio.testing import MockClock

from tests.support.logs import messages
from tests.support.track import Track
from trio_lanes import Coalesce, Job, JobState, LaneConfig, LaneInstrument, open_lanes

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


class Told:
    """Calls of an ``on_wait``, and when they came."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, float]] = []

    def __call__(self, job: Job[object], waited: float) -> None:
        assert job.state is JobState.WAITING
        self.calls.append((job.name, waited, trio.current_time()))


@pytest.mark.parametrize("session", [None, "alice"])
async def test_on_wait_is_called_once_past_the_threshold_with_the_time_waited(
    session: str | None, autojump_clock: MockClock
) -> None:
    told = Told()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 100, session=session)
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 0, session=session, name="own", warn_after=7, on_wait=told)
        lanes.submit_nowait(trio.sleep, 0, session=session, name="the lane's", on_wait=told)
    assert told.calls == [("the lane's", 2.0, 3.0), ("own", 7.0, 8.0)]


async def test_on_wait_is_not_called_for_a_job_that_starts_or_is_cancelled_before(
    autojump_clock: MockClock,
) -> None:
    told = Told()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1, on_wait=told)
        lanes.submit_nowait(trio.sleep, 10, on_wait=told)
        cancelled = lanes.submit_nowait(trio.sleep, 0, on_wait=told, warn_after=5)
        await trio.sleep(4)
        cancelled.cancel()
    assert told.calls == []


@pytest.mark.parametrize("session", [None, "alice"])
async def test_on_wait_is_called_in_the_context_of_the_submission(
    session: str | None, autojump_clock: MockClock
) -> None:
    def on_wait(job: Job[None], waited: float) -> None:
        seen.append(user.get())
        user.set("set by on_wait")

    async def body() -> None:
        seen.append(user.get())

    seen: list[str] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10, session=session)
        for name in ("alice", "bob"):
            user.set(name)
            lanes.submit_nowait(body, session=session, on_wait=on_wait)
        user.set("carol")
        await trio.sleep(5)
        assert seen == ["alice", "bob"]
    assert seen == ["alice", "bob", "set by on_wait", "set by on_wait"]
    assert user.get() == "carol"


async def test_an_on_wait_that_raises_changes_nothing_and_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(job: Job[object], waited: float) -> None:
        raise OSError("broken")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        job = lanes.submit_nowait(trio.sleep, 0, on_wait=broken)
        await job.wait()
        assert job.started_at == 10
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)


async def test_an_on_wait_may_cancel_its_job(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        job = lanes.submit_nowait(trio.sleep, 0, on_wait=lambda job, waited: job.cancel())
        await job.wait_done()
        assert trio.current_time() == 2
        assert job.state is JobState.CANCELLED


async def test_a_warning_never_cancels(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": LaneConfig(concurrency=1, warn_after=0.5)}) as lanes:
        for n in range(5):
            lanes.submit_nowait(track.sleep, n)
    assert track.ended == [0, 1, 2, 3, 4]


async def test_the_log_has_one_warning_per_lane_and_warn_after_with_number_and_longest_wait(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    main, cron = LaneConfig(concurrency=1, warn_after=2), LaneConfig(concurrency=1, warn_after=4)
    async with open_lanes({"main": main, "cron": cron}) as lanes:
        lanes.submit_nowait(trio.sleep, 4.5)
        lanes.submit_nowait(trio.sleep, 4.5, lane="cron")
        for n in range(100):
            lanes.submit_nowait(trio.sleep, 0, session=str(n % 3) if n % 2 else None)
            lanes.submit_nowait(trio.sleep, 0, lane="cron")
    assert sorted(line.partition(";")[0] for line in messages(caplog)) == [
        "lane 'cron': 100 waiting, the longest for 4.0 s",
        "lane 'main': 100 waiting, the longest for 2.0 s",
        "lane 'main': 100 waiting, the longest for 4.0 s",
    ]


async def test_warnings_of_jobs_with_a_warn_after_of_their_own_are_no_more_lines(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    async with open_lanes({"main": LaneConfig(concurrency=1, warn_after=10)}) as lanes:
        lanes.submit_nowait(trio.sleep, 19)
        lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(1)
        for n in range(100):
            lanes.submit_nowait(trio.sleep, 0, warn_after=1 + n / 100, on_wait=told)
    assert len(told.calls) == 100
    assert [line.partition(";")[0] for line in messages(caplog)] == [
        "lane 'main': 101 waiting, the longest for 2.0 s",
        "lane 'main': 101 waiting, the longest for 12.0 s",
    ]


async def test_without_long_waits_the_log_is_silent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(20):
            lanes.submit_nowait(trio.sleep, 1)
            lanes.submit_nowait(trio.sleep, 0.5)
            await lanes.wait_idle()
    assert caplog.records == []


@pytest.mark.parametrize("own", [0, 1, math.inf])
@pytest.mark.parametrize("of_the_lane", [0, 1, math.inf])
async def test_any_patience_comes_to_rest_and_does_not_outlast_the_work(
    own: float, of_the_lane: float, autojump_clock: MockClock
) -> None:
    # 0 once set a timer for the present moment for ever, and so did jobs of which all had a
    # warn_after of their own; and the block once stayed open until the last timer was due.
    async with open_lanes({"main": LaneConfig(concurrency=1, warn_after=of_the_lane)}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        lanes.submit_nowait(trio.sleep, 5, warn_after=own)
        await trio.sleep(3)
        lanes.submit_nowait(trio.sleep, 1)
    assert trio.current_time() == 11


async def test_leaving_does_not_wait_for_a_warning_that_is_due_much_later(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=1, warn_after=1000)
    with pytest.RaisesGroup(OSError):
        async with open_lanes({"main": config}) as lanes:
            lanes.submit_nowait(trio.sleep, 1)
            lanes.submit_nowait(trio.sleep, 1)
            await trio.sleep(0.5)
            raise OSError
    assert trio.current_time() == 0.5
    async with open_lanes({"main": config}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1)
    assert trio.current_time() == 2.5


# ---- a key that is submitted again


class Heard(LaneInstrument):
    """The calls of the hook."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def job_waiting_long(self, job: Job[object], waited: float) -> None:
        self.calls.append((job.name, trio.current_time()))


@pytest.mark.parametrize("first", [True, False])
async def test_a_job_that_loses_its_on_wait_to_a_newer_submission_is_told_of_in_time(
    autojump_clock: MockClock, first: bool
) -> None:
    heard, told = Heard(), Told()
    async with open_lanes({"main": 1}, instruments=[heard]) as lanes:
        lanes.submit_nowait(trio.sleep, 20)
        options = {"coalesce": Coalesce("k"), "name": "key"}
        lanes.submit_nowait(trio.sleep, 0, **options, **({"on_wait": told} if first else {}))
        await trio.sleep(1.5)
        lanes.submit_nowait(trio.sleep, 0, name="later")
        lanes.submit_nowait(trio.sleep, 0, **options, **({} if first else {"on_wait": told}))
    assert heard.calls == [("key", 2.0), ("later", 3.5)]
    assert [at for _, _, at in told.calls] == ([] if first else [2.0])


@pytest.mark.parametrize("again", [{}, {"warn_after": 1.0}])
async def test_one_wait_is_told_once_however_often_its_key_is_submitted(
    autojump_clock: MockClock, again: dict[str, float]
) -> None:
    heard, told = Heard(), Told()
    async with open_lanes({"main": 1}, instruments=[heard]) as lanes:
        lanes.submit_nowait(trio.sleep, 20)
        lanes.submit_nowait(trio.sleep, 0, name="key", coalesce=Coalesce("k"))
        for _ in range(4):
            await trio.sleep(1.5)
            lanes.submit_nowait(
                trio.sleep, 0, name="key", coalesce=Coalesce("k"), on_wait=told, **again
            )
    at = 1.5 if again else 2.0  # the newest submission has waited for its `warn_after` already
    assert heard.calls == [("key", at)]
    assert told.calls == [("key", at, at)]


async def test_a_wait_that_begins_anew_is_told_anew(autojump_clock: MockClock) -> None:
    heard = Heard()
    async with open_lanes({"main": 1}, instruments=[heard]) as lanes:
        lanes.submit_nowait(trio.sleep, 20)
        for _ in range(2):
            coalesce = Coalesce("k", debounce=1.0)
            lanes.submit_nowait(trio.sleep, 0, name="key", coalesce=coalesce, warn_after=2)
            await trio.sleep(5)
    assert heard.calls == [("key", 3.0), ("key", 8.0)]


async def test_a_job_that_loses_its_on_wait_needs_no_timer_without_instruments(
    autojump_clock: MockClock,
) -> None:
    told = Told()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 20)
        lanes.submit_nowait(trio.sleep, 0, coalesce=Coalesce("k"), on_wait=told)
        lanes.submit_nowait(trio.sleep, 0, coalesce=Coalesce("k"))
    assert told.calls == []
