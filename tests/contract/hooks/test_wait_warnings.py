"""Warnings about long waits: hooks and log together, and how often lanes wake up for them."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.track import Steps, Track
from trio_lanes import Job, JobState, LaneConfig, RateLimit, open_lanes

HOUR = 3600.0


class Waits:
    """What `job_waiting_long` is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, float]] = []

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        self.calls.append((job.name, waited, trio.current_time()))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The number of waiting jobs and the longest wait in each line, without what comes after."""
    return [record.getMessage().partition(";")[0] for record in caplog.records]


async def test_a_warning_names_the_oldest_job_and_the_root_of_its_wait(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1, "cron": 9}) as lanes:
        lanes.start_soon(trio.sleep, 3, session="alice")
        lanes.start_soon(trio.sleep, 0, name="reply")
        lanes.start_soon(trio.sleep, 0, lane="cron", name="report", session="alice")
    assert sorted(record.getMessage() for record in caplog.records) == [
        "lane 'cron': 1 waiting, the longest for 2.0 s; 'report', "
        "job 3 ← 1 of its session ← its body, for 2.0 s",
        "lane 'main': 1 waiting, the longest for 2.0 s; 'reply', "
        'job 2 ← slots of "main": 1 of 1 in use, longest by 1 for 2.0 s',
    ]


async def test_a_warning_names_all_that_holds_the_oldest_job(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rate = RateLimit(1, algorithm="sliding")
    async with open_lanes({"main": LaneConfig(rate=rate)}) as lanes:
        lanes.start_soon(trio.sleep, 3)
        lanes.start_soon(trio.sleep, 0, name="reply")
    assert [record.getMessage() for record in caplog.records] == [
        "lane 'main': 1 waiting, the longest for 2.0 s; 'reply', "
        'job 2 ← slots of "main": 1 of 1 in use, longest by 1 for 2.0 s, '
        'and 2 ← rate of "main": 1 a minute, in about 58 s'
    ]


async def test_where_rates_and_pauses_alone_hold_the_oldest_job_the_log_is_silent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider = LaneConfig(concurrency=2, rate=RateLimit(1, algorithm="sliding"))
    async with open_lanes({"main": 9, "provider": provider}) as lanes:
        for _ in range(2):
            lanes.start_soon(trio.sleep, 0, lane="provider", session="alice")
        lanes.start_soon(trio.sleep, 0, session="alice")
        lanes.pause_for("main", 30)
        await trio.sleep(59)
        assert lines(caplog) == []
        lanes.start_soon(trio.sleep, 100, lane="main", session="alice", priority=1)
        await trio.sleep(6)
    # then a body holds both
    assert sorted(lines(caplog))[1::2] == [
        f"lane {lane!r}: 1 waiting, the longest for 64.0 s" for lane in ("main", "provider")
    ]


async def test_an_instrument_is_told_once_of_each_job_that_waits_for_long(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits()
    async with open_lanes({"main": 1, "cron": 1}, instruments=[waits]) as lanes:
        lanes.start_soon(trio.sleep, 10)
        lanes.start_soon(trio.sleep, 10, lane="cron")
        await trio.sleep(1)
        for lane in ("main", "cron"):
            lanes.start_soon(trio.sleep, 0, lane=lane, name=f"{lane}'s")
            lanes.start_soon(trio.sleep, 0, lane=lane, name=f"{lane}'s own", warn_after=5)
            lanes.start_soon(trio.sleep, 0, lane=lane, name="patient", warn_after=math.inf)
    assert sorted(waits.calls, key=lambda call: (call[2], call[0])) == [
        ("cron's", 2.0, 3.0),
        ("main's", 2.0, 3.0),
        ("cron's own", 5.0, 6.0),
        ("main's own", 5.0, 6.0),
    ]


async def test_a_job_that_waits_in_its_session_is_warned_about_as_a_job_in_its_lane(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits()
    async with open_lanes({"main": 8}, instruments=[waits]) as lanes:
        lanes.start_soon(trio.sleep, 3, session="alice")
        lanes.start_soon(trio.sleep, 0, session="alice", name="behind")
    assert waits.calls == [("behind", 2.0, 2.0)]
    assert lines(caplog) == ["lane 'main': 1 waiting, the longest for 2.0 s"]


@pytest.mark.parametrize("delay", [0, 1])
async def test_a_job_that_its_session_holds_for_a_job_in_another_lane_is_warned_about(
    delay: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 8, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 3.5, session="alice", lane="cron")
        lanes.start_soon(trio.sleep, 0, session="alice", delay=delay)
    assert lines(caplog) == ["lane 'main': 1 waiting, the longest for 2.0 s"]


async def test_each_kind_of_listener_is_told_at_the_same_moment(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits()
    told: list[tuple[str, float]] = []
    async with open_lanes({"main": 1}, instruments=[waits]) as lanes:
        lanes.start_soon(trio.sleep, 4)
        lanes.start_soon(
            trio.sleep,
            0,
            name="a",
            warn_after=3,
            on_wait=lambda job, waited: told.append((job.name, waited)),
        )
    assert told == [("a", 3.0)]
    assert waits.calls == [("a", 3.0, 3.0)]
    assert lines(caplog) == ["lane 'main': 1 waiting, the longest for 3.0 s"]


@pytest.mark.parametrize("seconds", [0.1, 0.7, 1 / 3, 2.2])
async def test_times_that_are_no_binary_fractions_are_met_as_well(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    told: list[float] = []
    async with open_lanes({"main": LaneConfig(warn_after=seconds)}) as lanes:
        for _ in range(7):
            await trio.sleep(seconds)
        lanes.start_soon(trio.sleep, 10.5 * seconds)
        lanes.start_soon(trio.sleep, 0)
        lanes.start_soon(trio.sleep, 0, on_wait=lambda job, waited: told.append(waited))
    assert told == pytest.approx([seconds])
    assert len(lines(caplog)) == 4  # after 1, 2, 4 and 8 times that


@pytest.mark.parametrize("seconds", [0, 1e-300, 1e-9])
async def test_a_tiny_warn_after_does_not_log_a_line_at_each_reading_of_the_clock(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    async with open_lanes({"main": LaneConfig(warn_after=seconds)}) as lanes:
        await trio.sleep(1)
        lanes.start_soon(trio.sleep, 4.5)
        lanes.start_soon(trio.sleep, 0)
    assert len(lines(caplog)) == 4  # after 0, 1, 2 and 4 seconds


async def test_warn_after_and_on_wait_of_a_job_do_not_pass_to_the_next_job(
    autojump_clock: MockClock,
) -> None:
    told: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(3):
            lanes.start_soon(trio.sleep, 10)
            lanes.start_soon(
                trio.sleep, 10, on_wait=lambda job, waited: told.append(waited), warn_after=4
            )
            lanes.start_soon(trio.sleep, 10)
            await lanes.wait_idle()
    assert told == [4.0] * 3


async def test_an_on_wait_that_submits_pauses_or_clears_is_heeded(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    def act(job: Job[Any], waited: float) -> None:
        lanes.start_soon(track.sleep, "urgent", priority=5)
        lanes.clear("cron")
        job.priority = -1

    async with open_lanes({"main": 1, "cron": 0}) as lanes:
        lanes.start_soon(track.sleep, "running", 5)
        lanes.start_soon(track.sleep, "warned", on_wait=act)
        lanes.start_soon(track.sleep, "other")
        cleared = lanes.submit_nowait(track.sleep, "cleared", lane="cron")
        await lanes.wait_idle()
    assert track.started == ["running", "urgent", "other", "warned"]
    assert cleared.state is JobState.CANCELLED


async def test_an_instrument_that_raises_when_told_of_a_wait_is_removed_and_the_job_runs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        calls = 0

        def job_waiting_long(self, job: Job[Any], waited: float) -> None:
            self.calls += 1
            raise OSError("broken")

    broken = Broken()
    track = Track()
    async with open_lanes({"main": 1}, instruments=[broken]) as lanes:
        lanes.start_soon(track.sleep, "a", 5)
        lanes.start_soon(track.sleep, "b")
        lanes.start_soon(track.sleep, "c")
    assert broken.calls == 1
    assert track.ended == ["a", "b", "c"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1


async def test_at_most_one_line_per_lane_and_warn_after_while_jobs_come_and_go(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            times.append(trio.current_time())

    note = Note()
    logging.getLogger("trio_lanes").addHandler(note)
    try:
        async with open_lanes({"main": LaneConfig(concurrency=2, warn_after=3.0)}) as lanes:
            for i in range(400):
                own = i % 5 / 2 if i % 2 else None
                lanes.start_soon(trio.sleep, 1, session=str(i % 7), warn_after=own)
                await trio.sleep(0.25)
    finally:
        logging.getLogger("trio_lanes").removeHandler(note)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) > 7
    assert min(gaps) >= 3.0


async def test_a_line_about_a_lane_comes_when_its_longest_wait_has_doubled(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 0}) as lanes:
        lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(50)
        assert lines(caplog) == [
            f"lane 'main': 1 waiting, the longest for {seconds}.0 s"
            for seconds in (2, 4, 8, 16, 32)
        ]
        lanes.clear()


async def test_a_wait_that_is_long_is_in_the_log_soon_after_another_that_was_much_longer(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 70)
        lanes.start_soon(trio.sleep, 20)
        await trio.sleep(69)
        lanes.start_soon(trio.sleep, 0)
        await trio.sleep(3)
        assert lines(caplog)[-2:] == [
            "lane 'main': 1 waiting, the longest for 64.0 s",
            "lane 'main': 1 waiting, the longest for 2.0 s",
        ]


async def test_a_lane_that_was_idle_in_between_is_still_quiet_for_warn_after(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": LaneConfig(warn_after=10.0)}) as lanes:

        async def wait_for(seconds: float) -> None:
            lanes.start_soon(trio.sleep, seconds)
            lanes.start_soon(trio.sleep, 0, warn_after=1)
            await lanes.wait_idle()

        await wait_for(2)
        await wait_for(2)
        assert len(lines(caplog)) == 1
        await trio.sleep(10)
        await wait_for(2)
        assert len(lines(caplog)) == 2


async def test_a_templates_lane_that_was_gone_in_between_is_still_quiet_for_warn_after(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"sub:*": LaneConfig(warn_after=60)}) as lanes:
        for _ in range(30):
            lanes.submit_nowait(trio.sleep, 3, lane="sub:x")
            lanes.submit_nowait(trio.sleep, 0, lane="sub:x", warn_after=1)
            await lanes.wait_idle()
            assert lanes.statistics().lanes == {}
            await trio.sleep(1)
    assert trio.current_time() == 120
    assert lines(caplog) == ["lane 'sub:x': 1 waiting, the longest for 1.0 s"] * 2


async def test_lanes_of_a_template_are_quiet_each_for_itself_however_many_there_are(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"sub:*": LaneConfig(warn_after=60)}) as lanes:
        for begin in (0, 25, 75):
            await trio.sleep_until(begin)
            for n in range(200):
                lanes.submit_nowait(trio.sleep, 3, lane=f"sub:{n}")
                lanes.submit_nowait(trio.sleep, 0, lane=f"sub:{n}", warn_after=1)
                await trio.sleep(0.125)
    assert len(lines(caplog)) == 2 * len(set(lines(caplog))) == 400


@pytest.mark.parametrize(
    ("of_the_lane", "own"), [(math.inf, None), (2.0, math.inf), (0.0, math.inf)]
)
async def test_jobs_with_an_infinite_warn_after_wake_no_task(
    autojump_clock: MockClock, of_the_lane: float, own: float | None
) -> None:
    async with open_lanes({"main": LaneConfig(warn_after=of_the_lane)}) as lanes:
        lanes.start_soon(trio.sleep_forever)
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 0, warn_after=own)
        await trio.sleep(5)
        with Steps() as steps:
            await trio.sleep(10 * HOUR)
        assert steps.count == 1  # that of this very test
        lanes.clear()
        lanes.reset()


async def test_when_the_last_job_with_warn_after_has_gone_no_task_is_woken_any_more(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep_forever)
        lanes.submit_nowait(trio.sleep, 0, warn_after=math.inf)
        job = lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(5)
        assert len(lines(caplog)) == 2
        job.cancel()
        await trio.sleep(5)
        with Steps() as steps:
            await trio.sleep(10 * HOUR)
        assert steps.count == 1
        assert len(lines(caplog)) == 2
        lanes.clear()
        lanes.reset()


async def test_a_single_job_with_warn_after_is_found_among_other_jobs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 103)
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 0, warn_after=math.inf)
        await trio.sleep(100)
        assert lines(caplog) == []
        lanes.start_soon(trio.sleep, 0)
    assert lines(caplog) == ["lane 'main': 4 waiting, the longest for 102.0 s"]


async def test_jobs_with_a_patience_of_their_own_that_have_gone_change_no_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        own = [lanes.submit_nowait(trio.sleep, 0, warn_after=math.inf) for _ in range(4)]
        own[0].cancel()
        late = lanes.submit_nowait(trio.sleep, 0, warn_after=math.inf, queue_timeout=0.5)
        await lanes.wait_idle()
        assert late.state is JobState.CANCELLED
        lanes.start_soon(trio.sleep, 3)
        lanes.start_soon(trio.sleep, 0)
    assert lines(caplog) == ["lane 'main': 1 waiting, the longest for 2.0 s"]
