"""How the gateway is tested: on virtual time, while a recorder checks what the lanes did."""

from trio.testing import MockClock, wait_all_tasks_blocked

from examples.howto.gateway import Gateway
from trio_lanes import JobState, open_lanes
from trio_lanes.testing import LaneRecorder


async def test_a_user_is_answered_in_order(autojump_clock: MockClock) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        gateway = Gateway(lanes)
        for text in ("one", "two", "three"):
            gateway.receive("alice", text)
            gateway.receive("bob", text)
    recorder.check()  # order, overlap, limits, each job settled once
    assert gateway.answers["alice"] == ["one, indeed", "two, indeed", "three, indeed"]
    assert recorder.peak("main") == 2  # one of alice's, one of bob's
    assert autojump_clock.current_time() == 900  # a quarter of an hour, in no time


async def test_stop_forgets_what_waits_and_not_what_runs(mock_clock: MockClock) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 4}, instruments=[recorder]) as lanes:
        gateway = Gateway(lanes)
        for text in ("one", "two", "/stop", "three"):
            gateway.receive("alice", text)
        await wait_all_tasks_blocked()  # until every task waits
        assert [job.state for job in recorder.finished] == [JobState.CANCELLED]
        mock_clock.jump(300)
        await wait_all_tasks_blocked()
        assert gateway.answers["alice"] == ["one, indeed"]
        mock_clock.jump(300)
    recorder.check()
    assert gateway.answers["alice"] == ["one, indeed", "three, indeed"]
