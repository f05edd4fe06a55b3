"""Inbox: what a receipt can do to its message, groups of steers, rollback, and held messages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, busy, kinds
from trio_lanes import (
    Job,
    JobCancelledError,
    LaneConfig,
    LaneFullError,
    LaneInstrument,
    Lanes,
    open_lanes,
)
from trio_lanes.agents import Conversation, Inbox, SettledKind, Summary, Turn, WhenBusy

pytestmark = pytest.mark.both_doors

STEER, FOLLOWUP, COLLECT = WhenBusy.STEER, WhenBusy.FOLLOWUP, WhenBusy.COLLECT
INTERRUPT, ROLLBACK, REJECT = WhenBusy.INTERRUPT, WhenBusy.ROLLBACK, WhenBusy.REJECT


# ---- threads


async def test_in_another_thread_each_verb_names_the_portal_and_has_no_effect(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt, turn = inbox.post("one"), stage.turn
    verbs: list[Callable[[], object]] = [
        lambda: inbox.post("two"),
        inbox.hold,
        inbox.release,
        receipt.cancel,
        turn.take,
        lambda: turn.abort(then="hold"),
        lambda: turn.queue_message("two"),
    ]
    with ThreadPoolExecutor(1) as pool:
        for verb in verbs:
            with pytest.raises(RuntimeError, match="portal"):
                pool.submit(verb).result()
        assert pool.submit(lambda: receipt.position).result() == 0
    assert turn.take() == ["one"]
    assert not turn.abort_called
    assert not inbox.is_held


# ---- position, edit, cancel


async def test_position_counts_the_messages_before_it(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    assert stage.first is not None
    assert stage.first.position is None
    receipts = [inbox.post(text) for text in "abc"]
    assert [receipt.position for receipt in receipts] == [0, 1, 2]
    interrupt = inbox.post("now", when_busy=INTERRUPT)
    assert [receipt.position for receipt in (interrupt, *receipts)] == [0, 1, 2, 3]
    await wait_all_tasks_blocked()
    assert [receipt.position for receipt in (interrupt, *receipts)] == [None, 0, 1, 2]


async def test_a_message_can_be_edited_while_it_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipt = inbox.post("teh")
    assert receipt.edit("the")
    assert receipt.message == "the"
    await stage.end()
    assert stage.turn.messages == ["the"]
    assert not receipt.edit("too late")
    assert receipt.message == "the"
    await stage.end()
    assert not receipt.edit("too late")


async def test_a_summary_quotes_the_edited_text(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=1)
    inbox.post("teh").edit("the")
    inbox.post("next")
    await stage.end()
    assert stage.turn.messages == [Summary("the"), "next"]
    await stage.end()


async def test_a_message_can_be_cancelled_while_it_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    one, two = inbox.post("one"), inbox.post("two")
    assert one.cancel("never mind")
    assert not one.cancel()
    settled = await one.settled()
    assert settled.kind is SettledKind.CANCELLED
    assert isinstance(settled.error, JobCancelledError)
    assert settled.error.reason == "never mind"
    await stage.end()
    assert stage.turn.messages == ["two"]
    assert not two.cancel()
    await stage.end()
    assert kinds([two]) == ["ran"]


async def test_cancelling_the_only_message_leaves_no_job(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    assert inbox.post("two").cancel()
    await stage.end()
    assert lanes.sessions() == []
    assert stage.started == [["first"]]


async def test_a_cancelled_interrupt_has_aborted_the_turn_already(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    later = inbox.post("later", when_busy=FOLLOWUP)
    assert inbox.post("now", when_busy=INTERRUPT).cancel()
    await wait_all_tasks_blocked()
    assert stage.started == [["first"], ["later"]]
    await stage.end()
    assert kinds([later]) == ["ran"]


async def test_cancelling_a_message_joins_the_runs_on_both_sides(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT)
    one = inbox.post("one")
    between = inbox.post("between", when_busy=FOLLOWUP)
    two, three = inbox.post("two"), inbox.post("three")
    assert between.cancel()
    assert two.cancel()
    await stage.end()
    await trio.sleep(1)
    assert stage.turn.messages == ["one", "three"]
    await stage.end()
    assert kinds([one, two, three]) == ["ran", "cancelled", "merged"]


# ---- groups


async def test_a_turn_takes_steers_of_its_own_group_only(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.post("first", group="ann")
    await wait_all_tasks_blocked()
    assert stage.turn.group == "ann"
    inbox.post("more", group="ann")
    inbox.post("from Ben", group="ben")
    inbox.post("and more", group="ann")
    assert stage.turn.take() == ["more"]
    assert stage.turn.take() == []  # the order is kept: Ben's message is before Ann's
    await stage.end()
    assert stage.turn.messages == ["from Ben"]
    await stage.end()
    assert stage.turn.messages == ["and more"]
    await stage.end()


async def test_a_message_that_is_queued_by_a_turn_is_of_its_group(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.post("first", group="ann")
    await wait_all_tasks_blocked()
    assert stage.turn.queue_message("more")
    assert stage.turn.take() == ["more"]
    await stage.end()


# ---- rollback


async def test_rollback_interrupts_a_turn_that_is_to_leave_the_conversation(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    conversation = Conversation("alice")

    async def handler(turn: Turn) -> None:
        async with conversation.turn(*turn.messages) as exchange:
            try:
                exchange.append("well")
                await trio.sleep(10)
                await exchange.finish()
            finally:
                if turn.rollback_called:
                    exchange.rollback()

    inbox = Inbox(lanes, "alice", handler)
    wrong = inbox.post("what is a lnae?")
    await trio.sleep(1)
    right = inbox.post("what is a lane?", when_busy=ROLLBACK)
    assert (await wrong.settled()).kind is SettledKind.CANCELLED
    assert (await right.settled()).kind is SettledKind.RAN
    messages = await conversation.messages()
    assert [message.content for message in messages] == ["what is a lane?", "well"]


async def test_an_interrupted_turn_can_still_be_rolled_back_and_an_ended_turn_cannot(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    stage.cleanup = 1
    turn = stage.turn
    turn.abort("stop")
    assert not turn.rollback_called
    inbox.post("again", when_busy=ROLLBACK)
    assert turn.rollback_called
    await trio.sleep(2)
    assert not stage.turn.rollback_called
    await stage.end()
    stage.turn.abort(rollback=True)
    assert not stage.turn.rollback_called


# ---- holding after a failure


async def failed(lanes: Lanes, stage: Stage, *waiting: str) -> Inbox:
    """An inbox whose first turn failed while these messages waited."""
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, hold_on_failure=True)
    for text in waiting:
        inbox.post(text)
    await stage.fail(OSError())
    assert stage.first is not None
    assert kinds([stage.first]) == ["failed"]
    return inbox


async def test_waiting_messages_are_held_after_a_failure_until_they_are_released(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await failed(lanes, stage, "two", "three")
    assert inbox.is_held
    later = inbox.post("four")
    await trio.sleep(10_000)
    assert stage.started == [["first"]]
    assert inbox.is_busy
    assert kinds([inbox.post("no", when_busy=REJECT)]) == ["rejected"]
    inbox.release()
    inbox.release()
    assert not inbox.is_held
    for _ in range(3):
        await wait_all_tasks_blocked()
        await stage.end()
    assert stage.started == [["first"], ["two"], ["three"], ["four"]]
    assert kinds([later]) == ["ran"]


async def test_a_failure_with_nothing_waiting_holds_nothing(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await failed(lanes, stage)
    assert not inbox.is_held
    inbox.post("two")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == ["two"]
    await stage.end()


async def test_a_held_inbox_is_over_when_its_last_message_is_cancelled(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await failed(lanes, stage, "two")
    (receipt,) = inbox.waiting
    assert receipt.cancel()
    assert not inbox.is_held
    inbox.post("three")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == ["three"]
    await stage.end()


async def test_clear_cancels_held_messages(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await failed(lanes, stage, "two")
    (receipt,) = inbox.waiting
    assert lanes.clear("session:alice") == 1
    assert kinds([receipt]) == ["cancelled"]
    assert not inbox.is_held


async def test_a_release_in_a_full_lane_runs_the_messages_when_their_turn_comes(
    stage: Stage, autojump_clock: MockClock
) -> None:
    sessions = LaneConfig(max_waiting=2)
    async with open_lanes({"main": 1}, sessions=sessions) as lanes:
        inbox = await failed(lanes, stage, "two")
        lanes.session("alice").pause()
        blocker = lanes.submit_nowait(trio.sleep, 1, session="alice")
        inbox.release()
        assert not inbox.is_held
        lanes.session("alice").resume()
        await blocker.wait()
        await wait_all_tasks_blocked()
        assert stage.turn.messages == ["two"]
        await stage.end()


class Filling(LaneInstrument):
    """Fills the session lane when the first job starts, and holds its inbox if there is one."""

    lanes: Lanes | None
    inbox: Inbox | None = None

    def job_started(self, job: Job[Any]) -> None:
        lanes, self.lanes = self.lanes, None
        if self.inbox is not None:
            self.inbox.hold()
        if lanes is not None:
            lanes.submit_nowait(trio.sleep, 1, session="alice")


async def test_a_hold_as_its_job_starts_cancels_messages_for_which_no_other_job_fits(
    stage: Stage, autojump_clock: MockClock
) -> None:
    filling = Filling()
    sessions = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 1}, sessions=sessions, instruments=[filling]) as lanes:
        filling.lanes = lanes
        filling.inbox = inbox = Inbox(lanes, "alice", stage.handler)
        settled = await inbox.post("one").settled()
        assert settled.kind is SettledKind.CANCELLED
        assert isinstance(settled.error, LaneFullError)
        assert stage.started == []
        assert inbox.is_held


async def test_held_messages_are_cancelled_if_no_job_for_them_fits_when_the_turn_ends(
    stage: Stage, autojump_clock: MockClock
) -> None:
    filling = Filling()
    sessions = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 1}, sessions=sessions, instruments=[filling]) as lanes:
        filling.lanes = lanes
        inbox = Inbox(lanes, "alice", stage.handler, when_busy=FOLLOWUP, hold_on_failure=True)
        inbox.post("one")
        receipt = inbox.post("two")
        await wait_all_tasks_blocked()
        await stage.fail(OSError())
        settled = await receipt.settled()
        assert settled.kind is SettledKind.CANCELLED
        assert isinstance(settled.error, LaneFullError)
        assert not inbox.is_held
        assert stage.started == [["one"]]
