"""Inbox: what each mode does with a message, and what becomes of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, busy, kinds
from trio_lanes import LaneConfig, LaneDeadlockError, Lanes, UnknownLaneError, open_lanes
from trio_lanes.agents import Inbox, MessageState, Overflow, SettledKind, Turn, WhenBusy

pytestmark = pytest.mark.both_doors

STEER, FOLLOWUP, COLLECT = WhenBusy.STEER, WhenBusy.FOLLOWUP, WhenBusy.COLLECT
INTERRUPT, REJECT, REPLACE = WhenBusy.INTERRUPT, WhenBusy.REJECT, WhenBusy.REPLACE


# ---- making one


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cap": 0}, ValueError),
        ({"cap": -1}, ValueError),
        ({"cap": 1.5}, ValueError),
        ({"cap": True}, TypeError),
        ({"cap": "many"}, TypeError),
        ({"debounce": -0.1}, ValueError),
        ({"debounce": trio.current_time}, TypeError),
        ({"debounce": float("inf")}, ValueError),
        ({"debounce": float("nan")}, ValueError),
        ({"max_wait": -1}, ValueError),
        ({"max_wait": True}, TypeError),
        ({"max_wait": float("nan")}, ValueError),
        ({"max_wait": 10**309}, ValueError),  # more than fits a float
        ({"when_busy": "later"}, ValueError),
        ({"overflow": "burst"}, ValueError),
        ({"session": " "}, ValueError),
        ({"session": None}, TypeError),
        ({"lane": "nowhere"}, UnknownLaneError),
        ({"handler": None}, TypeError),
    ],
)
async def test_a_bad_value_is_an_error_at_once(
    lanes: Lanes,
    stage: Stage,
    options: dict[str, Any],
    error: type[Exception],
    autojump_clock: MockClock,
) -> None:
    options = {"session": "alice", "handler": stage.handler, **options}
    with pytest.raises(error):
        Inbox(lanes, options.pop("session"), options.pop("handler"), **options)


async def test_a_session_wider_than_one_is_refused(stage: Stage, autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 4, "session:wide": 2}) as lanes:
        with pytest.raises(ValueError, match="'session:wide' runs 2 jobs at once"):
            Inbox(lanes, "wide", stage.handler)
        Inbox(lanes, "alice", stage.handler)


async def test_all_sessions_wider_than_one_are_refused(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 4}, sessions=LaneConfig(concurrency=2)) as lanes:
        with pytest.raises(ValueError, match="2 jobs at once"):
            Inbox(lanes, "alice", stage.handler)


async def test_turns_do_not_overlap_in_a_session_that_was_made_wider_later(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    lanes.configure({"session:alice": 2})
    receipt = inbox.post("second", when_busy=FOLLOWUP)
    await wait_all_tasks_blocked()
    assert stage.started == [["first"]]
    assert kinds([receipt]) == ["waits"]
    await stage.end()
    assert stage.started == [["first"], ["second"]]


# ---- posting


async def test_post_takes_the_place_in_line_at_once(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, when_busy=FOLLOWUP)
    receipts = [inbox.post(n) for n in range(5)]
    assert inbox.waiting == receipts
    for _ in range(5):
        await wait_all_tasks_blocked()
        await stage.end()
    assert stage.started == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("mode", list(WhenBusy))
async def test_when_not_busy_every_mode_runs_at_once(
    lanes: Lanes, stage: Stage, mode: WhenBusy, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, when_busy=mode)
    assert not inbox.is_busy
    receipt = inbox.post("hello")
    await wait_all_tasks_blocked()
    assert stage.started == [["hello"]]
    assert stage.times == [0]
    await stage.end("done")
    assert kinds([receipt]) == ["ran"]
    assert not inbox.is_busy


async def test_an_inbox_in_which_a_message_waits_is_busy(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.post("first")
    assert inbox.turn is None
    assert inbox.is_busy
    refused = inbox.post("second", when_busy=REJECT)
    assert kinds([refused]) == ["rejected"]


async def test_a_mode_may_be_given_by_its_value(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    assert kinds([inbox.post("second", when_busy="reject")]) == ["rejected"]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="later"):
        inbox.post("third", when_busy="later")  # type: ignore[arg-type]
    assert inbox.statistics().offered == 2


async def test_the_mode_of_the_inbox_may_be_changed(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    inbox.when_busy = REJECT
    assert kinds([inbox.post("second")]) == ["rejected"]


async def test_a_message_waits_then_is_in_a_turn_then_has_settled(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    receipt = inbox.post("hello", id="x")
    assert (receipt.message, receipt.id) == ("hello", "x")
    states = [receipt.state]
    await wait_all_tasks_blocked()
    states.append(receipt.state)
    await stage.end()
    states.append(receipt.state)
    assert states == [MessageState.WAITING, MessageState.IN_TURN, MessageState.SETTLED]


async def test_a_turn_takes_its_messages_when_it_starts_not_when_its_job_is_forwarded(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        lanes.submit_nowait(trio.sleep, 10)
        first = inbox.post("first", when_busy=REPLACE)
        await trio.sleep(1)
        second = inbox.post("second", when_busy=REPLACE)
        await trio.sleep(10)
        assert stage.started == [["second"]]
        await stage.end()
        assert kinds([first, second]) == ["replaced", "ran"]


async def test_turns_run_in_the_lane_that_was_named(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, lane="subagent")
    assert stage.turn.job.lane == inbox.lane == "subagent"
    assert stage.turn.job.session == inbox.session == "alice"
    assert stage.turn.job.name == "Stage.handler"


# ---- waiting for what becomes of it


async def test_settled_gives_the_result_of_the_turn(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    first = stage.first
    assert first is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.settled)
        await stage.end(42)
    settled = await first.settled()
    assert (settled.kind, settled.result, settled.error) == (SettledKind.RAN, 42, None)
    assert settled.turn is stage.turn
    assert inbox.statistics().offered == 1


async def test_settled_is_a_checkpoint_also_when_it_is_known(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("second", when_busy=REJECT)
    with assert_checkpoints():
        await receipt.settled()


async def test_cancelling_a_wait_leaves_the_message_alone(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("second", when_busy=FOLLOWUP)
    with trio.move_on_after(1) as scope:
        await receipt.settled()
    assert scope.cancelled_caught
    await stage.end()
    assert stage.started == [["first"], ["second"]]
    await stage.end()
    assert kinds([receipt]) == ["ran"]


async def test_many_may_wait_for_one_message(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("second", when_busy=REPLACE)
    seen: list[str] = []

    async def wait() -> None:
        seen.append((await receipt.settled()).kind)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        inbox.post("third", when_busy=REPLACE)
    assert seen == ["replaced", "replaced"]


async def test_a_wait_goes_on_when_another_job_takes_over(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("c1", when_busy=COLLECT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receipt.settled)
        await wait_all_tasks_blocked()
        inbox.post("c2", when_busy=COLLECT)
        inbox.post("f", when_busy=FOLLOWUP)
        for _ in range(3):
            await stage.end()
    assert kinds([receipt]) == ["ran"]


@pytest.mark.parametrize("mode", [STEER, FOLLOWUP, COLLECT, INTERRUPT, REPLACE])
async def test_waiting_inside_a_turn_for_a_later_message_is_a_deadlock(
    lanes: Lanes, mode: WhenBusy, autojump_clock: MockClock
) -> None:
    errors: list[object] = []

    async def handler(turn: Turn) -> None:
        if turn.messages == ["first"]:
            with trio.CancelScope(shield=True):
                try:
                    await inbox.post("later", when_busy=mode).settled()
                except LaneDeadlockError as error:
                    errors.append(error)

    inbox = Inbox(lanes, "alice", handler)
    inbox.post("first")
    await lanes.wait_idle()
    assert len(errors) == 1
    assert inbox.statistics().settled[SettledKind.RAN] == 2


async def test_waiting_inside_a_turn_for_its_own_message_is_a_deadlock(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> None:
        await first.settled()

    first = Inbox(lanes, "alice", handler).post("first")
    settled = await first.settled()
    assert settled.kind is SettledKind.FAILED
    assert isinstance(settled.error, LaneDeadlockError)


async def test_waiting_in_a_circle_of_two_inboxes_is_a_deadlock(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def ask(turn: Turn) -> SettledKind:
        settled = await others[turn.messages[0]].post("question").settled()
        return settled.kind

    async def ask_back(turn: Turn) -> SettledKind:
        settled = await alice.post("back", when_busy=FOLLOWUP).settled()
        return settled.kind

    async def handler(turn: Turn) -> SettledKind:
        return SettledKind.RAN if turn.messages == ["back"] else await ask(turn)

    alice = Inbox(lanes, "alice", handler)
    others = {"bob": Inbox(lanes, "bob", ask_back)}
    settled = await alice.post("bob").settled()
    assert settled.result is SettledKind.FAILED


async def test_a_turn_may_wait_for_a_message_of_another_session(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def answer(turn: Turn) -> str:
        return f"{turn.messages[0]}!"

    async def ask(turn: Turn) -> Any:
        return (await Inbox(lanes, "bob", answer).post("hi").settled()).result

    assert (await Inbox(lanes, "alice", ask).post("go").settled()).result == "hi!"


# ---- STEER


async def test_a_steer_is_taken_at_the_next_boundary(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipts = [inbox.post("s1"), inbox.post("s2")]
    assert kinds(receipts) == ["waits", "waits"]
    assert stage.turn.take() == ["s1", "s2"]
    assert stage.turn.take() == []
    assert kinds(receipts) == ["steered", "steered"]
    assert (await receipts[0].settled()).turn is stage.turn
    await stage.end()
    assert stage.started == [["first"]]


async def test_a_message_stays_steered_if_the_turn_then_fails(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("steer")
    stage.turn.take()
    await stage.fail(ValueError())
    assert stage.first is not None
    assert kinds([receipt, stage.first]) == ["steered", "failed"]


async def test_a_steer_that_no_turn_takes_is_run_next_in_its_place(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipts = [inbox.post("s1"), inbox.post("s2"), inbox.post("f", when_busy=FOLLOWUP)]
    for _ in range(4):
        await stage.end()
    assert stage.started == [["first"], ["s1"], ["s2"], ["f"]]
    assert kinds(receipts) == ["ran"] * 3


async def test_in_the_order_of_the_queue_a_steer_waits_for_the_turn_of_a_followup_before_it(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, steers_first=False)
    receipts = [inbox.post("s1"), inbox.post("f", when_busy=FOLLOWUP), inbox.post("s2")]
    assert stage.turn.take() == ["s1"]
    await stage.end()
    assert stage.started == [["first"], ["f"]]
    assert stage.turn.take() == ["s2"]
    await stage.end()
    assert kinds(receipts) == ["steered", "ran", "steered"]


async def test_a_turn_takes_steers_past_messages_of_other_modes_in_the_order_of_their_posts(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    collected = [inbox.post("c1", when_busy=COLLECT), inbox.post("s1")]
    collected += [inbox.post("c2", when_busy=COLLECT), inbox.post("s2")]
    later = inbox.post("f", when_busy=FOLLOWUP)
    assert [receipt.position for receipt in (*collected, later)] == [2, 0, 3, 1, 4]
    assert [receipt.message for receipt in inbox.waiting] == ["c1", "s1", "c2", "s2", "f"]
    assert stage.turn.take() == ["s1", "s2"]
    assert [receipt.position for receipt in (*collected, later)] == [0, None, 1, None, 2]
    await stage.end()
    assert stage.started == [["first"], ["c1", "c2"]]  # nothing is between them any more
    await stage.end()
    await stage.end()
    assert kinds([*collected, later]) == ["ran", "steered", "merged", "steered", "ran"]


async def test_a_steer_that_no_turn_took_keeps_its_place_in_the_queue(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipts = [inbox.post("f1", when_busy=FOLLOWUP), inbox.post("s")]
    receipts.append(inbox.post("f2", when_busy=FOLLOWUP))
    assert [receipt.position for receipt in receipts] == [1, 0, 2]
    stage.turn.abort()  # it takes no more
    assert [receipt.position for receipt in receipts] == [0, 1, 2]
    await wait_all_tasks_blocked()
    for _ in range(3):
        await stage.end()
    assert stage.started == [["first"], ["f1"], ["s"], ["f2"]]


async def test_a_steer_of_a_turn_that_no_message_may_overtake_has_its_place_in_the_queue(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, steers_first=False)
    receipts = [inbox.post("s1"), inbox.post("f", when_busy=FOLLOWUP), inbox.post("s2")]
    assert [receipt.position for receipt in receipts] == [0, 1, 2]
    for _ in range(4):
        await stage.end()


# ---- FOLLOWUP


async def test_each_followup_is_a_later_turn(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipts = [inbox.post("f1"), inbox.post("f2")]
    assert stage.turn.take() == []
    for value in range(3):
        await stage.end(value)
    assert stage.started == [["first"], ["f1"], ["f2"]]
    assert [(await receipt.settled()).result for receipt in receipts] == [1, 2]


# ---- COLLECT


async def test_collected_messages_become_one_turn_after_the_debounce(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    receipts = [inbox.post("c1")]
    await trio.sleep(0.4)
    receipts.append(inbox.post("c2"))
    await stage.end()
    await trio.sleep(1)
    assert stage.started == [["first"], ["c1", "c2"]]
    assert stage.times[1] == 0.9
    await stage.end("both")
    assert kinds(receipts) == ["ran", "merged"]
    assert [(await receipt.settled()).result for receipt in receipts] == ["both", "both"]


async def test_collected_messages_are_due_no_later_than_max_wait_after_the_oldest(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT, debounce=1, max_wait=5)
    inbox.post(0)
    await stage.end()
    for n in range(1, 10):
        await trio.sleep(0.75)
        inbox.post(n)
    assert stage.started == [["first"], [0, 1, 2, 3, 4, 5, 6]]
    assert stage.times[1] == 5


async def test_the_oldest_of_messages_that_a_cancellation_brought_together_counts_when_it_is_gone(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT, debounce=10, max_wait=15)
    oldest = inbox.post("a1", group="a")
    between = inbox.post("b", group="b")
    await trio.sleep(8)
    inbox.post("a2", group="a")
    between.cancel()
    oldest.cancel()
    await stage.end()
    await trio.sleep(20)
    assert stage.started == [["first"], ["a2"]]
    assert stage.times[1] == 15


@pytest.mark.parametrize("cap", [1, 2])
async def test_a_stream_that_overflows_the_line_is_heard_after_max_wait(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock, cap: int
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT, cap=cap, overflow=Overflow.DROP_OLDEST)
    inbox.post(0)
    await stage.end()
    for n in range(1, 30):
        await trio.sleep(0.375)
        inbox.post(n)
    assert stage.started[1] == [12, 13][-cap:]
    assert stage.times[1] == 5


async def test_any_other_message_behind_them_makes_collected_ones_due_at_once(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    receipts = [inbox.post("c1"), inbox.post("c2")]
    await stage.end()
    assert len(stage.turns) == 1
    await trio.sleep(0.25)
    receipts.append(inbox.post("f", when_busy=FOLLOWUP))
    await wait_all_tasks_blocked()
    assert stage.started == [["first"], ["c1", "c2"]]
    assert stage.times[1] == 0.25
    await stage.end()
    await stage.end()
    assert kinds(receipts) == ["ran", "merged", "ran"]


async def test_a_run_of_collected_messages_is_of_one_group(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    for message in ("a1", "a2", "b1", "a3"):
        inbox.post(message, group=message[0])
    for _ in range(2):
        await stage.end()
    assert stage.started == [["first"], ["a1", "a2"], ["b1"]]
    await stage.end()
    assert len(stage.turns) == 3  # there may be more to a3
    await trio.sleep(1)
    assert stage.started[3] == ["a3"]
    assert stage.times[3] == 0.5
    await stage.end()


async def test_what_is_posted_when_not_busy_collects_nothing(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, when_busy=COLLECT)
    inbox.post("a")
    inbox.post("b")
    inbox.post("c")
    await wait_all_tasks_blocked()
    assert stage.started == [["a"]]
    await stage.end()
    await trio.sleep(1)
    assert stage.started == [["a"], ["b", "c"]]
    assert stage.times == [0, 0.5]
    await stage.end()


async def test_a_failure_goes_to_all_that_were_collected(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    receipts = [inbox.post("c1"), inbox.post("c2")]
    await stage.end()
    await trio.sleep(1)
    error = ValueError("no")
    await stage.fail(error)
    assert kinds(receipts) == ["failed", "failed"]
    assert [(await receipt.settled()).error for receipt in receipts] == [error, error]


async def test_a_cancellation_goes_to_all_that_were_collected(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    receipts = [inbox.post("c1"), inbox.post("c2")]
    await stage.end()
    await trio.sleep(1)
    stage.turn.abort()
    await wait_all_tasks_blocked()
    assert kinds(receipts) == ["cancelled", "cancelled"]


async def test_the_job_that_comes_when_they_are_due_is_the_only_one(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    for n in range(10):
        inbox.post(n)
        await trio.sleep(0.25)
        assert lanes.session("alice").waiting == 1
    assert stage.turn.take() == []
    assert lanes.session("alice").waiting == 1


# ---- INTERRUPT


async def test_an_interrupt_aborts_the_turn_and_goes_before_all_else(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    stage.cleanup = 1
    inbox.post("steer")
    receipts = [inbox.post("i1", when_busy=INTERRUPT), inbox.post("i2", when_busy=INTERRUPT)]
    assert stage.turn.abort_called
    assert stage.turn.take() == []
    await trio.sleep(1.5)
    assert stage.first is not None
    assert kinds([stage.first]) == ["cancelled"]
    assert stage.started == [["first"], ["i1"]]
    assert stage.times[1] == 1
    assert not stage.turn.abort_called
    assert stage.turn.take() == ["steer"]  # though i2 is before it
    await stage.end()
    assert stage.started[2] == ["i2"]
    await stage.end()
    assert kinds(receipts) == ["ran", "ran"]


async def test_collected_messages_stay_what_they_are_when_an_interrupt_goes_before_them(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    inbox.post("c1")
    inbox.post("i", when_busy=INTERRUPT)
    await wait_all_tasks_blocked()
    await stage.end()
    inbox.post("c2")
    await trio.sleep(1)
    assert stage.started == [["first"], ["i"], ["c1", "c2"]]
    assert stage.times == [0, 0, 0.5]
    await stage.end()


# ---- REJECT, REPLACE


async def test_reject_refuses_a_message_when_busy(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("second", when_busy=REJECT)
    assert (await receipt.settled()).kind is SettledKind.REJECTED
    assert lanes.session("alice").waiting == 0
    await stage.end()
    assert stage.started == [["first"]]


async def test_replace_takes_the_place_of_a_waiting_one_at_the_end_of_the_line(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipts = [
        inbox.post("r1", when_busy=REPLACE),
        inbox.post("f"),
        inbox.post("r2", when_busy=REPLACE),
    ]
    assert not stage.turn.abort_called
    for _ in range(3):
        await stage.end()
    assert stage.started == [["first"], ["f"], ["r2"]]
    assert kinds(receipts) == ["replaced", "ran", "ran"]


async def test_runs_that_were_parted_by_a_replaced_message_become_one(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    inbox.post("c1")
    inbox.post("r1", when_busy=REPLACE)
    inbox.post("c2")
    inbox.post("r2", when_busy=REPLACE)
    await stage.end()
    await stage.end()
    assert stage.started == [["first"], ["c1", "c2"], ["r2"]]
    await stage.end()
    assert not inbox.is_busy


# ---- the same id


async def test_the_same_id_within_five_minutes_is_offered_once(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    first = inbox.post("second", id=7)
    assert inbox.post("again", id=7) is first
    other = inbox.post("third", id=8)
    assert other is not first
    assert inbox.post("none") is not inbox.post("none")
    await trio.sleep(299.5)
    assert inbox.post("again", id=7) is first
    assert inbox.statistics().offered == 5
    await trio.sleep(0.5)
    later = inbox.post("later", id=7)
    assert later is not first
    assert inbox.post("again", id=7) is later
    assert stage.turn.take() == ["second", "third", "none", "none", "later"]


# ---- a second inbox of the same session


async def test_two_inboxes_of_a_session_never_overlap(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    other = Inbox(lanes, "alice", stage.handler)
    assert not other.is_busy
    receipts = [other.post("other", id=1), inbox.post("second", id=1, when_busy=FOLLOWUP)]
    await wait_all_tasks_blocked()
    assert stage.started == [["first"]]
    assert stage.turn.take() == []
    assert (len(inbox.waiting), len(other.waiting)) == (1, 1)
    for _ in range(3):
        await stage.end()
    assert stage.started == [["first"], ["other"], ["second"]]
    assert kinds(receipts) == ["ran", "ran"]


@pytest.mark.trio_only("it measures what both doors share")
async def test_a_message_among_very_many_that_wait_is_found_without_a_search(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    def steps(act: Callable[[], object]) -> int:
        """How many lines of code are run."""
        seen: list[str] = []

        def trace(frame: Any, event: str, arg: object) -> Any:
            seen.append(event)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            act()
        finally:
            sys.settrace(before)  # of a measurement of coverage
        return seen.count("line")

    counted = []
    for many in (100, 10_000):
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=math.inf)
        receipts = [inbox.post(n) for n in range(many)]
        middle = receipts[many // 2]
        counted.append((steps(partial(getattr, middle, "position")), steps(middle.cancel)))
        assert middle.position is None
        assert receipts[-1].position == many - 2
        await inbox.abort()
        stage.turns.clear()
        await trio.sleep(1)
    # a bisection looks at seven more of them
    assert all(of_many <= of_few + 3 * 8 for of_few, of_many in zip(*counted, strict=True))


async def test_a_post_asks_for_no_repr_of_what_the_handler_holds(autojump_clock: MockClock) -> None:
    class Holds:
        def __repr__(self) -> str:
            raise AssertionError("a message has asked for it")

        async def answer(self, turn: Turn) -> str:
            return "answered"

    async with open_lanes() as lanes:
        receipt = Inbox(lanes, "alice", Holds().answer).post("hello")
        assert (await receipt.settled()).result == "answered"
