"""Inbox: what is held, how a turn is stopped, and messages that are meant for one turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, busy, kinds
from trio_lanes import (
    JobCancelledError,
    LaneConfig,
    LaneFullError,
    LaneInstrument,
    Lanes,
    LanesClosedError,
    open_lanes,
)
from trio_lanes.agents import Inbox, Inboxes, Receipt, SettledKind, Turn, WhenBusy

pytestmark = pytest.mark.both_doors

STEER, FOLLOWUP, COLLECT = WhenBusy.STEER, WhenBusy.FOLLOWUP, WhenBusy.COLLECT
INTERRUPT, ROLLBACK, REJECT = WhenBusy.INTERRUPT, WhenBusy.ROLLBACK, WhenBusy.REJECT


def closed(receipt: Receipt) -> bool:
    """Whether the message was cancelled because the lanes close."""
    outcome = receipt.outcome
    return (
        outcome is not None
        and outcome.kind is SettledKind.CANCELLED
        and isinstance(outcome.error, LanesClosedError)
    )


# ---- hold and release


@pytest.mark.parametrize("mode", [mode for mode in WhenBusy if mode is not REJECT])
async def test_in_an_idle_inbox_that_is_held_a_message_of_any_mode_waits_until_the_release(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock, mode: WhenBusy
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.hold()
    inbox.hold()  # a flag, not a count
    assert inbox.is_held
    assert not inbox.is_busy
    assert "held" in repr(inbox)
    receipt = inbox.post("one", when_busy=mode)
    assert receipt.is_held
    await trio.sleep(10_000)
    assert stage.started == []
    inbox.release()
    assert not inbox.is_held
    assert not receipt.is_held
    await trio.sleep(1)
    assert stage.started == [["one"]]
    assert "held" not in repr(inbox)
    await stage.end()
    assert kinds([receipt]) == ["ran"]


async def test_a_held_inbox_rejects_what_is_not_to_wait(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.hold()
    receipt = inbox.post("one", when_busy=REJECT)
    assert kinds([receipt]) == ["rejected"]
    assert not receipt.is_held
    assert lanes.jobs() == []


async def test_collected_messages_of_a_held_inbox_share_a_turn(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, when_busy=COLLECT)
    inbox.hold()
    for text in "abc":
        inbox.post(text)
        await trio.sleep(100)
    inbox.release()
    await wait_all_tasks_blocked()
    assert stage.started == [["a", "b", "c"]]
    await stage.end()


async def test_an_active_turn_goes_on_and_takes_steers_while_its_inbox_is_held(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    inbox.hold()
    first = [inbox.post("now", when_busy=INTERRUPT), inbox.post("back", when_busy=ROLLBACK)]
    steer = inbox.post("more")
    await trio.sleep(100)
    assert not stage.turn.abort_called
    assert stage.turn.take() == ["more"]
    await stage.end()
    assert kinds([*first, steer]) == ["waits", "waits", "steered"]
    inbox.release()
    await wait_all_tasks_blocked()
    assert stage.started == [["first"], ["now"]]
    await stage.end()
    await stage.end()
    assert kinds(first) == ["ran", "ran"]


async def test_a_job_that_was_granted_its_slots_begins_no_turn_when_the_inbox_is_held(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    receipt = inbox.post("one")
    inbox.hold()
    await trio.sleep(100)
    assert stage.started == []
    inbox.release()
    await wait_all_tasks_blocked()
    assert stage.started == [["one"]]
    await stage.end()
    assert kinds([receipt]) == ["ran"]


async def test_a_hold_ends_by_a_release_alone(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipts = [inbox.post("one")]
    inbox.hold()
    assert receipts[0].cancel()
    assert inbox.is_held
    receipts.append(inbox.post("two"))
    await stage.end()
    assert lanes.clear("session:alice") == 1
    assert inbox.is_held
    receipts.append(inbox.post("three"))
    assert await inbox.stop()
    assert await inbox.abort()
    assert inbox.is_held
    receipts.append(inbox.post("four"))
    lanes.reset("session:alice")
    await trio.sleep(100)
    assert stage.started == [["first"]]
    inbox.release()
    await wait_all_tasks_blocked()
    await stage.end()
    assert kinds(receipts) == ["cancelled"] * 3 + ["ran"]


async def test_a_hold_that_a_failure_would_set_is_no_other(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, hold_on_failure=True)
    inbox.hold()
    (receipt,) = [inbox.post("one")]
    await stage.fail(OSError())
    assert receipt.cancel()
    assert inbox.is_held
    inbox.release()
    assert not inbox.is_held


class Acting(LaneInstrument):
    """Does something once, as a job is submitted or refused."""

    def __init__(self) -> None:
        self.act: Any = None

    def job_submitted(self, job: object) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()

    def job_rejected(self, lane: object, reason: str) -> None:
        self.job_submitted(lane)


async def test_a_hook_may_hold_the_inbox_while_a_message_is_posted(
    stage: Stage, autojump_clock: MockClock
) -> None:
    acting = Acting()
    async with open_lanes(instruments=[acting]) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        acting.act = inbox.hold
        receipt = inbox.post("one", when_busy=INTERRUPT)
        await trio.sleep(100)
        assert stage.started == []
        acting.act = inbox.hold
        inbox.release()  # the hook holds it again
        await trio.sleep(100)
        assert inbox.is_held
        assert stage.started == []
        inbox.release()
        await wait_all_tasks_blocked()
        await stage.end()
        assert kinds([receipt]) == ["ran"]


async def test_a_hook_may_release_the_inbox_while_a_message_for_it_is_held(
    stage: Stage, autojump_clock: MockClock
) -> None:
    acting = Acting()
    async with open_lanes(instruments=[acting]) as lanes:
        lanes.pause()
        inbox = Inbox(lanes, "alice", stage.handler)
        inbox.hold()
        acting.act = inbox.release
        receipt = inbox.post("two")
        assert not inbox.is_held
        lanes.resume()
        await wait_all_tasks_blocked()
        assert stage.started == [["two"]]
        await stage.end()
        assert kinds([receipt]) == ["ran"]


@pytest.mark.parametrize("stops", [True, False])
async def test_a_hold_in_a_full_lane_keeps_the_messages_that_wait(
    stage: Stage, autojump_clock: MockClock, stops: bool
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        inbox.post("one")
        await wait_all_tasks_blocked()
        receipt = inbox.post("two", when_busy=FOLLOWUP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(lanes.run, trio.sleep, 1))  # it waits for room
            await wait_all_tasks_blocked()
            if stops:
                await inbox.stop("hold")
            else:
                inbox.hold()
                await stage.end()
            await wait_all_tasks_blocked()
            assert receipt.is_held
            assert lanes.lane("main").waiting == 1  # it keeps its room
            inbox.release()
            await trio.sleep(2)
            assert stage.turn.messages == ["two"]
            await stage.end()
        assert kinds([receipt]) == ["ran"]


@pytest.mark.parametrize("mode", [FOLLOWUP, COLLECT])
async def test_a_release_in_a_full_lane_lets_what_was_held_keep_its_room(
    stage: Stage, autojump_clock: MockClock, mode: WhenBusy
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler, debounce=3)
        inbox.hold()
        receipt = inbox.post("one", when_busy=mode)
        inbox.release()
        assert not receipt.is_held
        await trio.sleep(3.1)
        assert stage.started == [["one"]]
        await stage.end()
        assert kinds([receipt]) == ["ran"]


async def test_a_hook_may_hold_the_inbox_again_while_a_full_lane_refuses_a_job(
    stage: Stage, autojump_clock: MockClock
) -> None:
    acting = Acting()
    limits = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 1}, sessions=limits, instruments=[acting]) as lanes:
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP, hold_on_failure=True)
        receipt = inbox.post("one")
        await stage.fail(OSError())
        acting.act = inbox.hold
        inbox.release()
        await trio.sleep(10_000)
        assert receipt.is_held
        assert receipt.cancel()
        assert inbox.is_held  # not by the failure alone, which holds nothing any more
        inbox.release()
        assert not inbox.is_held


async def test_a_hook_may_clear_the_lane_while_a_release_finds_no_room(
    stage: Stage, autojump_clock: MockClock
) -> None:
    acting = Acting()
    limits = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 1}, sessions=limits, instruments=[acting]) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        inbox.hold()
        receipt = inbox.post("one")
        acting.act = lanes.clear
        with pytest.raises(LaneFullError):
            inbox.release()
        assert kinds([receipt]) == ["cancelled"]


async def test_a_held_session_counts_in_the_limits_of_its_lane_as_any_other(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        inboxes = Inboxes(lanes, stage.handler)
        inboxes.hold("alice")
        inboxes.post("alice", "one")
        inboxes.hold("bob")
        with pytest.raises(LaneFullError):
            inboxes.post("bob", "two")
        assert inboxes.held == ["alice", "bob"]
        inboxes.release("alice")
        await wait_all_tasks_blocked()
        inboxes.post("bob", "two")
        inboxes.release("bob")
        await stage.end()
        await wait_all_tasks_blocked()
        await stage.end()
        assert stage.started == [["one"], ["two"]]


async def test_of_too_many_messages_a_held_inbox_keeps_a_summary(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, cap=2, when_busy=COLLECT, max_wait=1)
    inbox.hold()
    for text in "abcd":
        inbox.post(text)
    await trio.sleep(100)
    inbox.release()
    await wait_all_tasks_blocked()
    assert stage.started == [["a\nb", "c", "d"]]
    await stage.end()


async def test_a_turn_that_lends_its_slot_for_an_approval_goes_on_while_its_inbox_is_held(
    autojump_clock: MockClock,
) -> None:
    approved = trio.Event()

    async def handler(turn: Turn) -> list[Any]:
        async with turn.job.yield_slot(reason="an approval"):
            await approved.wait()
        return turn.take()

    async with open_lanes({"main": 1}) as lanes:
        inbox = Inbox(lanes, "alice", handler)
        first = inbox.post("first")
        await wait_all_tasks_blocked()
        inbox.hold()
        steer, later = inbox.post("more"), inbox.post("later", when_busy=FOLLOWUP)
        approved.set()
        assert (await first.settled()).result == ["more"]
        assert kinds([steer, later]) == ["steered", "waits"]
        assert lanes.lane("main").active == 0  # what is held takes no slot of others
        inbox.release()
        await later.settled()


# ---- the lanes close


async def test_a_drain_does_not_wait_for_held_messages(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes() as lanes:
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
        inbox.hold()
        receipts = [inbox.post("one"), inbox.post("two")]
        waiter: list[Any] = []

        async def wait() -> None:
            waiter.append(await receipts[0].settled())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            stage.tell(None)
            report = await lanes.drain()
        assert trio.current_time() == 0
        assert report.cancelled == 1  # the job that the messages would have had
        assert all(map(closed, receipts))
        assert waiter[0].kind is SettledKind.CANCELLED
        inbox.release()
        assert not inbox.is_held
        inbox.hold()  # there is nothing to hold any more


async def test_leaving_the_block_does_not_wait_for_held_messages(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes() as lanes:
        inboxes = Inboxes(lanes, stage.handler)
        inboxes.hold("alice")
        receipt = inboxes.post("alice", "one")
    assert trio.current_time() == 0
    assert closed(receipt)


@pytest.mark.parametrize("posts_first", [True, False])
async def test_what_a_turn_posts_into_a_held_inbox_while_the_lanes_close_is_cancelled(
    autojump_clock: MockClock, posts_first: bool
) -> None:
    receipts: list[Receipt] = []

    async def handler(turn: Turn) -> None:
        lanes.close()
        if posts_first:
            receipts.append(inbox.post("one", when_busy=FOLLOWUP))
            inbox.hold()
        else:
            inbox.hold()
            receipts.append(inbox.post("one", when_busy=FOLLOWUP))
            assert closed(receipts[0])
            assert turn.queue_message("more")

    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", handler)
        first = inbox.post("first")
        await first.settled()
        await lanes.drain()
        assert trio.current_time() == 0
        assert closed(receipts[0])
        assert inbox.waiting == []


async def test_what_is_held_in_lanes_that_close_is_cancelled_when_its_job_begins(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        other = lanes.submit_nowait(trio.sleep, 5)
        inbox = Inbox(lanes, "alice", stage.handler)
        receipt = inbox.post("one")
        lanes.close()
        inbox.hold()
        await lanes.drain()
        assert other.done
        assert trio.current_time() == 5
        assert closed(receipt)
        assert stage.started == []


async def test_a_hold_that_is_released_in_time_loses_nothing_when_the_lanes_close(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        inbox.hold()
        receipt = inbox.post("one")
        inbox.release()
        lanes.close()
        await wait_all_tasks_blocked()
        await stage.end()
        assert kinds([receipt]) == ["ran"]


# ---- stop


@pytest.mark.parametrize("way", ["inbox", "turn"])
@pytest.mark.parametrize("then", ["run", "hold", "clear"])
async def test_stop_ends_the_turn_and_says_what_becomes_of_what_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock, way: str, then: Any
) -> None:
    inbox = await busy(lanes, stage)
    assert stage.first is not None
    receipts = [inbox.post("one"), inbox.post("two", when_busy=FOLLOWUP)]
    if way == "inbox":
        assert await inbox.stop(then, reason="enough")
    else:
        stage.turn.abort("enough", then=then)
    await trio.sleep(100)
    assert kinds([stage.first]) == ["cancelled"]
    assert "enough" in str((await stage.first.settled()).error)
    assert inbox.is_held is (then == "hold")
    if then == "clear":
        assert kinds(receipts) == ["cancelled", "cancelled"]
        assert "enough" in str((await receipts[0].settled()).error)
    elif then == "hold":
        assert kinds(receipts) == ["waits", "waits"]
        assert stage.started == [["first"]]
        inbox.release()
        await wait_all_tasks_blocked()
    if then != "clear":
        assert stage.started[1] == ["one"]
        await stage.end()
        await stage.end()
        assert kinds(receipts) == ["ran", "ran"]


async def test_nothing_begins_between_the_end_of_the_turn_and_the_hold(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    seen: list[bool] = []

    async def handler(turn: Turn) -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(inbox.is_held)

    inbox = Inbox(lanes, "alice", handler)
    inbox.post("first")
    await wait_all_tasks_blocked()
    inbox.post("second")
    assert await inbox.stop("hold")
    await trio.sleep(100)
    assert seen == [True]
    inbox.release()
    await wait_all_tasks_blocked()
    assert await inbox.stop("clear")
    assert seen == [True, False]


@pytest.mark.parametrize("then", ["run", "hold", "clear"])
async def test_stop_with_no_turn_active_does_what_it_says_to_what_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock, then: Any
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    lanes.session("alice").pause()
    receipt = inbox.post("one")
    with assert_checkpoints():
        assert await inbox.stop(then)
    assert inbox.is_held is (then == "hold")
    lanes.session("alice").resume()
    await wait_all_tasks_blocked()
    if then == "run":
        await stage.end()
    assert kinds([receipt]) == [{"run": "ran", "hold": "waits", "clear": "cancelled"}[then]]
    await inbox.abort()


async def test_a_second_stop_adds_what_it_says(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    stage.cleanup = 5
    receipt = inbox.post("one")
    assert not await inbox.stop(reason="first", timeout=0)
    assert not await inbox.stop("hold", reason="second", timeout=1)
    assert await inbox.stop("run")
    assert inbox.is_held
    await trio.sleep(100)
    assert kinds([receipt]) == ["waits"]
    assert stage.first is not None
    assert "first" in str((await stage.first.settled()).error)
    stage.turn.abort(then="hold")  # the turn has ended: no effect
    assert await inbox.abort()


async def test_an_abort_of_a_turn_that_has_ended_holds_nothing(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    turn = stage.turn
    await stage.end()
    turn.abort(then="hold")
    assert not inbox.is_held


async def test_a_turn_that_stops_its_own_inbox_is_cancelled_and_the_hold_stands(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> None:
        inbox.post("second", when_busy=FOLLOWUP)
        await inbox.stop("hold")
        raise AssertionError("it goes on")

    inbox = Inbox(lanes, "alice", handler)
    first = inbox.post("first")
    assert (await first.settled()).kind is SettledKind.CANCELLED
    await trio.sleep(100)
    (second,) = inbox.waiting
    assert second.is_held
    assert await inbox.abort()


async def test_cancelling_the_caller_of_stop_does_not_undo_it(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    stage.cleanup = 5
    receipt = inbox.post("one")
    with trio.move_on_after(1) as scope:
        await inbox.stop("hold")
    assert scope.cancelled_caught
    assert stage.turn.abort_called
    await trio.sleep(100)
    assert kinds([receipt]) == ["waits"]
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.stop("clear")  # cancelled at its first checkpoint, after the act
    assert kinds([receipt]) == ["cancelled"]


async def test_stop_refuses_what_it_does_not_know(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    wrong: Any = "go on"
    for stop in (inbox.stop, lambda then: Inboxes(lanes, stage.handler).stop("bob", then)):
        with pytest.raises(ValueError, match="'run', 'hold' or 'clear', not 'go on'"):
            await stop(wrong)
    with pytest.raises(ValueError, match="not 'go on'"):
        stage.turn.abort(then=wrong)
    assert not stage.turn.abort_called


# ---- a table of inboxes


async def test_a_session_that_is_held_stays_in_the_table_with_nothing_waiting(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler)
    inboxes.hold("alice")
    assert await inboxes.stop("session:bob", "hold")
    assert await inboxes.stop("carol")
    assert inboxes.sessions == inboxes.held == ["alice", "bob"]
    inboxes.post("dave", "one")
    await wait_all_tasks_blocked()
    assert await inboxes.stop("dave", "hold", reason="enough")
    await trio.sleep(10_000)
    assert inboxes.held == ["alice", "bob", "dave"]
    receipt = inboxes.post("alice", "two")
    await trio.sleep(10_000)
    assert kinds([receipt]) == ["waits"]
    assert inboxes.is_held("alice")
    assert receipt.cancel()
    assert inboxes.is_held("alice")
    for session in ("alice", "bob", "carol", "dave"):
        inboxes.release(session)
    assert inboxes.held == inboxes.sessions == []


async def test_a_session_whose_turn_ends_while_it_is_held_stays_in_the_table(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler)
    inboxes.post("alice", "one")
    await wait_all_tasks_blocked()
    inboxes.hold("alice")
    await stage.end()
    assert inboxes.held == ["alice"]
    receipt = inboxes.post("alice", "two", expected_turn=stage.turn.id)
    assert kinds([receipt]) == ["rejected"]
    inboxes.release("alice")
    assert len(inboxes) == 0


async def test_a_table_says_for_all_its_sessions_that_steers_wait_in_line(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler, steers_first=False)
    inboxes.post("alice", "one")
    await wait_all_tasks_blocked()
    inboxes.post("alice", "f", when_busy=FOLLOWUP)
    inboxes.post("alice", "s")
    assert stage.turn.take() == []
    await inboxes.abort("alice")


# ---- messages that are meant for one turn


async def test_a_message_for_the_active_turn_is_queued(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    assert stage.turn.id == stage.turn.id
    receipt = inbox.post("more", expected_turn=stage.turn.id)
    assert stage.turn.take() == ["more"]
    assert kinds([receipt]) == ["steered"]
    await stage.end()


async def test_a_message_for_a_turn_that_is_not_the_active_one_is_rejected_with_the_reason(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    first = stage.turn
    await stage.end()
    receipts = [inbox.post("none", expected_turn=first.id, id=1)]
    inbox.post("second")
    await wait_all_tasks_blocked()
    second = stage.turn
    assert second.id != first.id
    receipts.append(inbox.post("another", expected_turn=first.id))
    receipts.append(inbox.post("stop that", expected_turn=first.id, when_busy=INTERRUPT))
    stage.cleanup = 1
    second.abort()
    receipts.append(inbox.post("aborted", expected_turn=second.id))
    assert kinds(receipts) == ["rejected"] * 4
    reasons = [str((await receipt.settled()).error) for receipt in receipts]
    assert reasons[0].endswith("but no turn is active")
    assert reasons[1].endswith(f"but the turn {second.id!r} is active")
    assert reasons[3].endswith("but it was aborted")
    assert inbox.waiting == []
    again = inbox.post("none", expected_turn=first.id, id=1)
    assert str((await again.settled()).error) == reasons[0]
    await trio.sleep(2)


async def test_the_turn_is_compared_when_the_message_is_queued(
    stage: Stage, autojump_clock: MockClock
) -> None:
    acting = Acting()
    async with open_lanes(instruments=[acting]) as lanes:
        inbox = await busy(lanes, stage)
        acting.act = stage.turn.abort  # in the middle of the post
        receipt = inbox.post("more", expected_turn=stage.turn.id)
        assert kinds([receipt]) == ["rejected"]
        assert inbox.waiting == []
        await wait_all_tasks_blocked()
        assert stage.started == [["first"]]
        assert lanes.jobs() == []


async def test_a_turn_is_expected_by_its_id(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    wrong: Any = stage.turn
    with pytest.raises(TypeError, match="expected_turn must be the id of a turn"):
        inbox.post("more", expected_turn=wrong)
    assert inbox.statistics().offered == 1
    with pytest.raises(TypeError, match="steers_first"):
        Inbox(lanes, "alice", stage.handler, steers_first=wrong)
    await stage.end()


async def test_the_error_of_what_a_stop_cancels_is_that_of_a_cancelled_job(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipt = inbox.post("one")
    await inbox.stop("clear", reason="enough")
    assert isinstance((await receipt.settled()).error, JobCancelledError)
