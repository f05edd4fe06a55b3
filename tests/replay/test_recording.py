"""`LaneRecorder.save` and `read_recording`: what is in the file, and what is wrong with others."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    Job,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.replay import RecordedRun, Recording, RecordingError, read_recording
from trio_lanes.testing import LaneRecorder


def this_job() -> Job[Any]:
    job = current_job()
    assert job is not None
    return job


async def lend_and_queue_again() -> None:
    job = this_job()
    await trio.sleep(1)
    async with job.yield_slot():
        await trio.sleep(2)
    await trio.sleep(1)
    await job.readmit()
    await trio.sleep(1)


async def fail(text: str) -> None:
    raise ValueError(text)


def saved(recorder: LaneRecorder, folder: Path) -> Recording:
    recorder.save(folder / "x.jsonl")
    return read_recording(folder / "x.jsonl")


async def test_a_file_has_times_limits_and_outcomes_and_neither_arguments_nor_keys(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    recorder = LaneRecorder()
    rate = RateLimit(100, unit="tokens")
    quiet = LaneConfig(concurrency=2, fair=True, rate=rate, timeout=60, log_failures=False)
    async with open_lanes(
        {
            "main": quiet,
            "tool:*": LaneConfig(aging=5.0, rate=rate),
            "cron": math.inf,
            "session:boss": 3,
            "never:*": 1,
        },
        groups={
            "all": LaneGroup(["main", "tool:*"], concurrency=9, reserve={"main": 1}),
            "none": LaneGroup(["never:*"]),
        },
        instruments=[recorder],
    ) as lanes:
        await trio.sleep(100)
        lanes.submit_nowait(lend_and_queue_again, session="boss", priority=2, name="long")
        lanes.submit_nowait(fail, "my secret", session="secret key", owner="secret owner")
        lanes.submit_nowait(trio.sleep, 1, lane="tool:a", delay=3, cost={"tokens": 7})
        lanes.submit_nowait(trio.sleep, 1, lane="cron", delay=50, name="never due").cancel()
        await lanes.wait_idle()
    recording = saved(recorder, tmp_path)
    text = (tmp_path / "x.jsonl").read_text()
    assert "secret" not in text
    assert "boss" not in text
    assert recording.lanes == {
        "main": LaneConfig(concurrency=2, fair=True, rate=rate),
        "tool:*": LaneConfig(aging=5.0, rate=rate),
        "cron": LaneConfig(concurrency=math.inf),
    }
    assert recording.sessions == {1: LaneConfig(concurrency=3)}
    assert recording.groups == {
        "all": LaneGroup(["main", "tool:*"], concurrency=9, reserve={"main": 1})
    }
    long, failed, tool, never = recording.jobs
    assert (long.session, long.priority, long.state) == (1, 2, "succeeded")
    assert (long.submitted, long.started, long.finished) == (0, 0, 5)
    assert long.steps == ((1, "lent"), (3, "held"), (4, "wanted"), (4, "held"))
    assert (failed.session, failed.owner, failed.state) == (2, 1, "failed")
    assert (tool.lane, tool.label, tool.cost) == ("tool:a", "tool:*", {"requests": 1, "tokens": 7})
    assert (tool.submitted, tool.waited_from, tool.started) == (0, 3, 3)
    assert (never.state, never.started, never.finished) == ("cancelled", None, 0)
    assert never.waited is None
    assert (recording.seconds, recording.left_out) == (5, 0)


async def test_a_file_may_be_saved_while_jobs_wait_and_run(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(trio.sleep, 9)
        lanes.submit_nowait(trio.sleep, 9)
        lanes.submit_nowait(trio.sleep, 9, delay=9)
        await trio.sleep(2)
        states = [(job.state, job.started, job.finished) for job in saved(recorder, tmp_path).jobs]
    assert states == [("running", 0, None), ("waiting", None, None), ("waiting", None, None)]


async def test_changes_of_limits_and_pauses_are_in_the_file(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1, "t:*": 1, "old:*": 1}, instruments=[recorder]) as lanes:
        lanes.lane("main").concurrency = 2  # before the first job: these are its limits
        lanes.pause("main")
        await trio.sleep(10)
        lanes.submit_nowait(trio.sleep, 9, session="ann", lane="t:a")
        lanes.submit_nowait(trio.sleep, 1, lane="old:a")
        await trio.sleep(1)
        lanes.resume("main")
        await trio.sleep(1)
        lanes.configure({"main": 4, "new": 7})
        lanes.lane("t:a").concurrency = 3
        lanes.configure(sessions=LaneConfig(concurrency=5))
        lanes.pause("session:ann")
        lanes.pause("session:ben")
        lanes.resume("session:ben")
        lanes.resume("session:ann")
        lanes.configure({"old:*": None})
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 1, lane="new")
    recording = saved(recorder, tmp_path)
    assert recording.lanes == {
        "main": LaneConfig(concurrency=2, paused=True),
        "new": LaneConfig(concurrency=7),
        "t:*": LaneConfig(),
        "old:*": LaneConfig(concurrency=math.inf),  # it is not known any more
    }
    told = [
        (change.at, change.lane, change.config and change.config.concurrency, change.paused)
        for change in recording.changes
    ]
    assert told == [
        (1, "main", None, False),
        (2, "main", 4, False),
        (2, "t:a", 3, False),
        (2, "session:1", None, True),
        (2, "session:1", None, False),
    ]


async def test_the_changes_are_bounded(autojump_clock: MockClock, tmp_path: Path) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1, "t:*": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(trio.sleep_forever, lane="t:a")
        lanes.lane("t:a").concurrency = 2
        for limit in range(2, 2002):
            await trio.sleep(0.001)
            lanes.lane("main").concurrency = limit
        job.cancel()
    recording = saved(recorder, tmp_path)
    assert len(recording.changes) == 1000
    assert recording.lanes["main"].concurrency == 1001
    assert recording.lanes["t:*"].concurrency == 1


async def test_the_jobs_are_bounded(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.replay._capture.MAX_JOBS", 3)
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        for _ in range(5):
            lanes.submit_nowait(trio.sleep, 1)
    recording = saved(recorder, tmp_path)
    assert [job.id for job in recording.jobs] == [3, 4, 5]
    assert recording.left_out == 2


async def test_a_child_knows_its_parent(autojump_clock: MockClock, tmp_path: Path) -> None:
    async def parent() -> None:
        await trio.sleep(2)
        lanes.submit_nowait(trio.sleep, 1)

    recorder = LaneRecorder()
    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(parent)
    assert [job.parent for job in saved(recorder, tmp_path).jobs] == [None, 1]


async def test_a_recorder_that_was_added_later_has_the_limits_of_that_time(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    recorder = LaneRecorder()
    with pytest.raises(RuntimeError, match="no lanes have this instrument"):
        recorder.save(tmp_path / "x")
    async with open_lanes({"main": 1, "t:*": 2}) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="t:a")
        lanes.lane("main").concurrency = 7
        lanes.add_instrument(recorder)
        assert saved(recorder, tmp_path).jobs == ()
        lanes.submit_nowait(trio.sleep, 1)
    recording = saved(recorder, tmp_path)
    assert recording.lanes == {"main": LaneConfig(concurrency=7), "t:*": LaneConfig(concurrency=2)}


async def test_an_instrument_is_told_of_the_lanes_before_anything_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Tells(LaneInstrument):
        def __init__(self) -> None:
            self.told: list[object] = []

        def lanes_opened(self, lanes: Lanes) -> None:
            self.told.append(lanes)
            lanes.submit_nowait(trio.sleep, 1, name="mine")

        def job_submitted(self, job: Job[Any]) -> None:
            self.told.append(job.name)

    class Bad(Tells):
        def lanes_opened(self, lanes: Lanes) -> None:
            raise ValueError

    one, other, bad = Tells(), Tells(), Bad()
    async with open_lanes({"main": 1}, instruments=[bad, one]) as lanes:
        assert one.told == [lanes, "mine"]
        lanes.add_instrument(other)
        lanes.add_instrument(other)
        assert other.told == [lanes, "mine"]
        assert len(one.told) == 3
        assert bad.told == []
    assert "is removed" in caplog.text


async def test_the_cost_of_a_job_and_the_groups_can_be_read(autojump_clock: MockClock) -> None:
    async def again() -> None:
        await this_job().readmit(cost=3)

    group = LaneGroup(["main"], concurrency=2)
    async with open_lanes({"main": LaneConfig(rate=RateLimit(9))}, groups={"g": group}) as lanes:
        assert lanes.groups == {"g": group}
        job = lanes.submit_nowait(again)
        assert job.cost == {"requests": 1}
        await job.wait()
        assert job.cost == {"requests": 3}
        assert lanes.submit_nowait(trio.sleep, 0, cost=0).cost == {"requests": 0}


# ---- files that cannot be used

RUN = RecordedRun(
    id=1,
    name="a",
    lane="main",
    label="main",
    submitted=0.0,
    waited_from=0.0,
    started=0.0,
    finished=1.0,
    state="succeeded",
)


def head(**more: Any) -> dict[str, Any]:
    return {
        "format": "trio-lanes recording",
        "version": 1,
        "seconds": 1.0,
        "lanes": {"main": {"concurrency": 1}},
        "sessions": {},
        "groups": {},
        "changes": 0,
        "jobs": 1,
        "left_out": 0,
        **more,
    }


def line(**more: Any) -> dict[str, Any]:
    return {**attrs.asdict(RUN), "cost": {"requests": 1}, **more}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "y.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_the_lines_of_these_tests_are_right(tmp_path: Path) -> None:
    assert read_recording(written(tmp_path, head(), line())).jobs == (RUN,)


async def test_decimals_and_calendars_are_written_down_and_read_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    recorder = LaneRecorder()
    rate = RateLimit(Decimal("2.50"), per="day", unit="usd", timezone="Europe/Berlin")
    lanes = {"main": LaneConfig(rate=rate)}
    async with open_lanes(lanes, instruments=[recorder]) as opened:
        await opened.run(trio.sleep, 1, cost={"usd": Decimal("0.000001"), "requests": 0})
    recording = saved(recorder, tmp_path)
    assert recording.lanes["main"].rate == (rate,)
    assert recording.jobs[0].cost == {"requests": 0, "usd": Decimal("0.000001")}
    text = (tmp_path / "x.jsonl").read_text()
    for bad in ('"cheap"', '"NaN"', '"-1"'):
        (tmp_path / "x.jsonl").write_text(text.replace('"0.000001"', bad))
        with pytest.raises(RecordingError, match="line 2"):
            read_recording(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "line 1: the file ends here; it was cut off"),
        (["[]"], "line 1: this is no object"),
        (["{}"], "this is no recording of trio-lanes"),
        (["x"], "line 1: this is not JSON"),
        (["[" * 100_000], "line 1: this is not JSON"),
        (
            [head(version=2)],
            "has version 2, and this trio-lanes reads version 1: update",
        ),
        ([head()], "line 2: the file ends here; it was cut off"),
        ([head(), line(), line()], "line 3: there are more lines than the head says"),
        ([head(), " " * 1_000_001], "line 2: the line has more than 1000000 bytes"),
        ([{"format": "trio-lanes recording", "version": 1}], "line 1: there is no 'changes'"),
        ([head(jobs=-1)], "-1 is no number of things"),
        ([head(jobs=True)], "True is no number of things"),
        ([head(), line(id=True)], "True is no whole number"),
        ([head(seconds="x")], "'x' is no number of seconds"),
        ([head(lanes={"main": {"concurrency": -3}})], "concurrency must"),
        ([head(lanes=[])], "line 1: 'list' object has no attribute 'items'"),
        ([head(lanes={}), line()], "line 2: the head has no lane 'main'"),
        ([head(), line(state="odd")], "'odd' is not a valid JobState"),
        ([head(), line(started=3.0)], "the times of job 1 do not ascend"),
        ([head(), line(lane="cron")], "'cron' is no lane of 'main'"),
        ([head(), line(lane="t:a", label="s:*")], "'t:a' is no lane of 's:*'"),
        ([head(), line(name=3)], "3 is no text"),
        ([head(), line(steps=[[0.5, "odd"]])], "has a state that a slot does not have"),
        ([head(), line(arguments=1)], "line 2: there is no 'arguments'"),
        ([head(changes=1, jobs=0), {"at": 0, "lane": "main", "paused": 1}], "neither true nor"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_says_why(
    tmp_path: Path, lines: list[Any], why: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert why in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_write_that_fails_leaves_the_former_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = LaneRecorder()

    async def main() -> None:
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            await lanes.run(trio.sleep, 1)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    recorder.save(tmp_path / "x.jsonl")
    before = (tmp_path / "x.jsonl").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    sync: Callable[[int], None] = full
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="No space left"):
        recorder.save(str(tmp_path / "x.jsonl"))
    assert (tmp_path / "x.jsonl").read_bytes() == before
    assert os.listdir(tmp_path) == ["x.jsonl"]
    with pytest.raises(FileNotFoundError):
        recorder.save(tmp_path / "none" / "x.jsonl")
