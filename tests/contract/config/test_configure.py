"""`configure`: lanes are changed while they work, all of it or nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    JobState,
    Lane,
    LaneConfig,
    LaneFullError,
    Lanes,
    SessionLane,
    UnknownLaneError,
    open_lanes,
)


def snapshot(lanes: Lanes) -> dict[str, Any]:
    """All that `configure` may change."""
    found: dict[str, Any] = {}
    for name, statistics in lanes.statistics().lanes.items():
        lane = lanes.lane(name)
        found[name] = (
            statistics,
            lane.config,
            lane.concurrency,
            lane.limiter.total_tokens,
            lane.paused,
        )
    return found


# ---- what each kind of value does


async def test_a_number_changes_only_the_concurrency_of_that_lane(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=1, max_waiting=7, warn_after=3.0, overdue_after=4.0)
    async with open_lanes({"main": config, "cron": 1}) as lanes:
        lanes.configure({"main": 5})
        lane = lanes.lane("main")
        assert lane.config == LaneConfig(
            concurrency=5, max_waiting=7, warn_after=3.0, overdue_after=4.0
        )
        assert lane.concurrency == lane.limiter.total_tokens == 5
        assert lanes.lane("cron").config == LaneConfig(concurrency=1)
        lanes.configure({"main": math.inf})
        assert lane.concurrency == math.inf


async def test_a_config_replaces_the_whole_configuration(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=3, max_waiting=7)}) as lanes:
        config = LaneConfig(concurrency=2, warn_after=9.0)
        lanes.configure({"main": config})
        assert lanes.lane("main").config == config
        assert lanes.lane("main").config.max_waiting == math.inf
        assert lanes.lane("main").concurrency == 2


async def test_a_new_name_is_a_new_lane(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(UnknownLaneError):
            lanes.lane("cron")
        lanes.configure({"cron": 1, " later ": LaneConfig(concurrency=2, paused=True)})
        assert list(lanes.statistics().lanes) == ["main", "cron", "later"]
        assert lanes.lane("later").paused
        for i in range(2):
            lanes.start_soon(track.sleep, i, lane="cron")
        await wait_all_tasks_blocked()
        assert lanes.lane("cron").active == 1
        assert lanes.statistics().active == 1
        await lanes.wait_idle()
        assert track.ended == [0, 1]


async def test_none_removes_a_lane(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        await lanes.run(trio.sleep, 1, lane="cron")
        view = lanes.lane("cron")
        lanes.configure({"cron": None})
        assert list(lanes.statistics().lanes) == ["main"]
        for use in (
            lambda: lanes.lane("cron"),
            lambda: lanes.submit_nowait(trio.sleep, 1, lane="cron"),
            lambda: view.submit_nowait(trio.sleep, 1),
            lambda: lanes.clear("cron"),
            lambda: lanes.pause("cron"),
        ):
            with pytest.raises(UnknownLaneError, match=r"'cron'.*'main'"):
                use()
        lanes.configure({"cron": 2})
        assert lanes.lane("cron").statistics().started == 0
        await lanes.run(trio.sleep, 1, lane="cron")


async def test_lanes_that_are_not_named_stay_as_they_are(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 3, "cron": LaneConfig(paused=True)}) as lanes:
        before = snapshot(lanes)
        lanes.configure()
        lanes.configure({})
        lanes.configure(None)
        assert snapshot(lanes) == before
        lanes.configure({"main": 4})
        assert snapshot(lanes)["cron"] == before["cron"]


async def test_configuring_is_no_checkpoint_and_happens_at_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, i) for i in range(4)]
        with assert_no_checkpoints():
            lanes.configure({"main": 3})
        assert [job.state for job in jobs] == [JobState.RUNNING] * 3 + [JobState.WAITING]


@pytest.mark.parametrize("name", ["main", "session:alice"])
async def test_a_lane_that_does_not_exist_cannot_be_removed(name: str) -> None:
    async with open_lanes({}) as lanes:
        with pytest.raises(UnknownLaneError, match=f"'{name}'.*none"):
            lanes.configure({name: None})
    async with open_lanes({"cron": 1, "session:bob": 1}) as lanes:
        known = "cron" if name == "main" else "session:bob"
        with pytest.raises(UnknownLaneError, match=f"'{name}'.*: '{known}'$"):
            lanes.configure({name: None})


# ---- with jobs in it


async def test_everything_that_can_start_starts_after_all_of_it_is_applied(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 0, "cron": 0}) as lanes:
        for i in range(3):
            lanes.start_soon(track.sleep, f"main{i}", session=f"s{i}")
            lanes.start_soon(track.sleep, f"cron{i}", session=f"c{i}", lane="cron")
        lanes.configure({"main": 2, "cron": 1, "new": 1})
        assert (lanes.lane("main").active, lanes.lane("cron").active) == (2, 1)
        await lanes.wait_idle()
    assert track.peak == 3


async def test_lowering_by_configure_stops_no_running_job(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 3}) as lanes:
        for i in range(4):
            lanes.start_soon(track.sleep, i, 1 + i)
        await wait_all_tasks_blocked()
        lanes.configure({"main": LaneConfig(concurrency=1)})
        assert lanes.lane("main").active == 3
    assert track.start_times[3] == 3.0
    assert len(track.ended) == 4


async def test_a_config_that_pauses_pauses_the_lane_and_a_config_without_it_resumes_the_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.configure({"main": LaneConfig(paused=True)})
        assert lanes.lane("main").paused
        lanes.start_soon(track.sleep, "a")
        await trio.sleep(5)
        assert track.started == []
        lanes.configure({"main": LaneConfig(paused=False)})
        assert not lanes.lane("main").paused
    assert track.start_times == {"a": 5.0}


async def test_a_number_leaves_a_paused_lane_paused(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(paused=True), "cron": 1}) as lanes:
        lanes.pause("cron")
        lanes.configure({"main": 5, "cron": 5})
        assert lanes.lane("main").paused
        assert lanes.lane("cron").paused
        lanes.resume()
        lanes.configure({"main": 6})
        assert not lanes.lane("main").paused


async def test_a_new_bound_holds_for_what_comes_next(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(4):
            lanes.start_soon(trio.sleep, 1)
        lanes.configure({"main": LaneConfig(max_waiting=2)})
        assert lanes.lane("main").waiting == 3
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1)


async def test_a_shorter_warn_after_is_heeded_by_what_waits(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": LaneConfig(warn_after=math.inf), "cron": 1}) as lanes:
        lanes.configure({"cron": LaneConfig(warn_after=100.0)})
        for lane in ("main", "cron"):
            lanes.start_soon(trio.sleep, 8, lane=lane)
            lanes.start_soon(trio.sleep, 1, lane=lane)
        await trio.sleep(1)
        for lane in ("main", "cron"):
            lanes.configure({lane: LaneConfig(warn_after=5.0)})
        await trio.sleep(5)
        assert sorted(record.message.split(":")[0] for record in caplog.records) == [
            "lane 'cron'",
            "lane 'main'",
        ]


async def test_a_lane_with_jobs_cannot_be_removed(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1, session="alice")
        waiting = lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron")
        before = snapshot(lanes)
        assert lanes.lane("cron").statistics().waiting_in_sessions == 1
        with pytest.raises(ValueError, match=r"'cron'.*1 jobs? wait"):
            lanes.configure({"main": 4, "cron": None})
        assert snapshot(lanes) == before
        waiting.cancel()
        lanes.configure({"cron": None})
        assert list(lanes.statistics().lanes) == ["main"]


@pytest.mark.parametrize("bound", ["lane", "session"])
async def test_a_lane_with_requests_for_room_cannot_be_removed(
    autojump_clock: MockClock, bound: str
) -> None:
    track = Track()
    sessions = LaneConfig(max_waiting=1) if bound == "session" else LaneConfig()
    cron = LaneConfig(concurrency=0, max_waiting=0) if bound == "lane" else LaneConfig()
    async with open_lanes({"main": 0, "cron": cron}, sessions=sessions) as lanes:
        if bound == "session":
            lanes.start_soon(track.sleep, "first", session="alice")
        async with trio.open_nursery() as nursery:

            async def submit() -> None:
                await lanes.submit(track.sleep, "second", session="alice", lane="cron")

            nursery.start_soon(submit)
            await wait_all_tasks_blocked()
            assert lanes.lane("cron").waiting == 0
            with pytest.raises(ValueError, match="'cron'"):
                lanes.configure({"cron": None})
            lanes.configure({"main": 1, "cron": 1})
    assert track.ended[-1] == "second"


async def test_a_job_may_configure_its_own_lane(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> None:
            lanes.configure({"main": 3})
            with pytest.raises(ValueError, match="'main'"):
                lanes.configure({"main": None})

        lanes.start_soon(body)
        for i in range(4):
            lanes.start_soon(track.sleep, i)
    assert track.peak == 3


# ---- rejected ones change nothing


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ({"main": -1}, ValueError, r"'main'.*concurrency.*-1"),
        ({"main": math.nan}, ValueError, r"'main'.*concurrency.*nan"),
        ({"main": 1.5}, ValueError, r"'main'.*concurrency.*1\.5"),
        ({"main": "4"}, TypeError, r"'main'.*concurrency.*'4'"),
        ({"main": True}, TypeError, r"'main'.*concurrency.*True"),
        ({"main": -math.inf}, ValueError, r"'main'.*concurrency.*-inf"),
        ({"new": None}, LookupError, r"'new'"),
        ({"new": []}, TypeError, r"'new'.*concurrency.*\[\]"),
        ({"": 1}, ValueError, r"blank.*''"),
        ({"  ": 1}, ValueError, r"blank.*'  '"),
        ({7: 1}, TypeError, r"7"),
        ({None: 1}, TypeError, r"None"),
        ({"main": 1, " main": 2}, ValueError, r"'main'.*twice"),
        ([("main", 1)], TypeError, r"mapping.*\[\('main', 1\)\]"),
        (5, TypeError, r"mapping.*5"),
    ],
    ids=str,
)
async def test_a_rejected_configuration_changes_nothing(
    autojump_clock: MockClock, bad: Any, error: type[Exception], says: str
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 1)
        before = snapshot(lanes)
        with pytest.raises(error, match=says):
            lanes.configure(bad)
        assert snapshot(lanes) == before
        if isinstance(bad, dict):  # nor does what is good in it, wherever that stands
            for mixed in (
                {"cron": 9, "extra": 1, **bad},
                {**bad, "cron": 9, "extra": 1},
            ):
                with pytest.raises(error, match=says):
                    lanes.configure(mixed)
                assert snapshot(lanes) == before


@pytest.mark.parametrize("bad", [-1, math.nan, 1.5, "4", None, True, -math.inf, 2.0])
async def test_a_bad_concurrency_is_refused_by_the_setter_and_changes_nothing(
    autojump_clock: MockClock, bad: Any
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 1)
        before = snapshot(lanes)
        with pytest.raises((TypeError, ValueError), match=f"concurrency.*{bad!r}"):
            lanes.lane("main").concurrency = bad
        assert snapshot(lanes) == before


async def test_a_removal_and_a_bad_value_in_one_call_remove_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        before = snapshot(lanes)
        with pytest.raises(ValueError, match="-3"):
            lanes.configure({"cron": None, "main": -3})
        assert snapshot(lanes) == before


async def test_a_hook_that_is_told_of_a_configuration_finds_all_of_it_applied(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    told: list[str] = []

    class Submit:
        def lane_paused(self, lane: Lane | SessionLane) -> None:
            told.append(lane.name)
            assert lanes.lane("cron").concurrency == 3
            for i in range(3):
                lanes.submit_nowait(track.sleep, f"{lane.name}{i}", lane="new", session=f"{i}")

    config = LaneConfig(paused=True)
    async with open_lanes({"main": 1, "cron": 1}, instruments=[Submit()]) as lanes:
        lanes.submit_nowait(track.sleep, "alice", session="alice")
        lanes.configure({"main": config, "session:alice": config, "cron": 3, "new": 2})
        assert told == ["main", "session:alice"]
        assert lanes.lane("new").active == 2
        assert len(lanes.jobs()) == 7
        lanes.resume("session:alice")
    assert len(track.ended) == 7
    assert track.peak == 3


async def test_a_hook_may_configure_while_lanes_are_served(autojump_clock: MockClock) -> None:
    track = Track()

    class Widen:
        lanes: Lanes

        def job_started(self, job: object) -> None:
            self.lanes.configure({"main": 2, "late": 1})

    widen = Widen()
    async with open_lanes({"main": 1}, instruments=[widen]) as lanes:
        widen.lanes = lanes
        for i in range(4):
            lanes.start_soon(track.sleep, i)
        assert lanes.lane("main").active == 2
        lanes.start_soon(track.sleep, "late", lane="late")
    assert len(track.ended) == 5
    assert track.peak == 3
