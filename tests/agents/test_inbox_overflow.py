"""Inbox: what happens when as many messages wait as may, and one more is posted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, busy, kinds
from trio_lanes import Job, LaneInstrument, Lanes, open_lanes
from trio_lanes.agents import Inbox, Overflow, SettledKind, Summary, WhenBusy

pytestmark = pytest.mark.both_doors

FOLLOWUP, COLLECT, INTERRUPT = WhenBusy.FOLLOWUP, WhenBusy.COLLECT, WhenBusy.INTERRUPT
REJECT, REPLACE = WhenBusy.REJECT, WhenBusy.REPLACE


async def test_summarize_puts_a_line_of_each_victim_before_the_next_turns_messages(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=2)
    receipts = [inbox.post(text) for text in ("one\n  line", "x" * 200, "c", "d")]
    assert kinds(receipts) == ["summarized", "summarized", "waits", "waits"]
    await stage.end()
    summary, message = stage.turn.messages
    assert isinstance(summary, Summary)
    assert summary.splitlines() == ["one line", "x" * 159 + "…"]
    assert message == "c"
    await stage.end()
    assert stage.turn.messages == ["d"]
    await stage.end()
    assert (await receipts[0].settled()).kind is SettledKind.SUMMARIZED


async def test_a_line_of_160_characters_is_left_whole(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=1)
    inbox.post("x" * 160)
    inbox.post("second")
    await stage.end()
    assert stage.turn.messages == ["x" * 160, "second"]
    await stage.end()


async def test_a_message_that_cannot_be_shown_is_summarized_all_the_same(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=1)
    inbox.post(Odd())
    inbox.post("second")
    await stage.end()
    assert "Odd>" in stage.turn.messages[0]
    await stage.end()


async def test_a_summary_is_never_given_to_a_turn_that_is_active(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=1)
    inbox.post("a")
    inbox.post("b")
    assert stage.turn.take() == ["b"]
    await stage.end()
    inbox.post("c")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == ["a", "c"]
    await stage.end()


@pytest.mark.parametrize("how", ["abort", "clear", "abort of an empty line"])
async def test_no_turn_is_given_a_summary_of_messages_that_were_aborted_or_cleared(
    how: str, lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=1)
    for text in ("a", "b"):
        inbox.post(text)
    if how == "abort of an empty line":
        assert stage.turn.take() == ["b"]
    if how == "clear":
        assert lanes.session("alice").clear() == 1
        await stage.end()
    else:
        assert await inbox.abort()
    inbox.post("c")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == ["c"]
    for text in ("d", "e"):
        inbox.post(text)
    await stage.end()
    assert stage.turn.messages == ["d", "e"]  # a later one has its summary
    await stage.end()


async def test_drop_oldest_drops_the_first_in_line(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=2, overflow=Overflow.DROP_OLDEST)
    receipts = [inbox.post(n) for n in range(4)]
    assert kinds(receipts) == ["dropped", "dropped", "waits", "waits"]
    for _ in range(3):
        await stage.end()
    assert stage.started == [["first"], [2], [3]]


async def test_drop_newest_drops_the_new_one(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=2, overflow=Overflow.DROP_NEWEST)
    receipts = [inbox.post(n) for n in range(4)]
    receipts.append(inbox.post("i", when_busy=INTERRUPT))
    assert kinds(receipts) == ["waits", "waits", "dropped", "dropped", "dropped"]
    assert not stage.turn.abort_called
    for _ in range(3):
        await stage.end()
    assert stage.started == [["first"], [0], [1]]


async def test_interrupts_are_no_victims(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=2, overflow=Overflow.DROP_OLDEST)
    stage.cleanup = 1
    receipts = [inbox.post("i", when_busy=INTERRUPT), inbox.post("a"), inbox.post("b")]
    assert kinds(receipts) == ["waits", "dropped", "waits"]


@pytest.mark.parametrize("overflow", list(Overflow))
async def test_where_only_interrupts_wait_the_new_message_is_dropped_and_aborts_nothing(
    lanes: Lanes, stage: Stage, overflow: Overflow, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, cap=2, overflow=overflow)
    inbox.post("i1", when_busy=INTERRUPT)
    inbox.post("i2", when_busy=INTERRUPT)
    await wait_all_tasks_blocked()
    inbox.post("i3", when_busy=INTERRUPT)  # aborts i1
    await wait_all_tasks_blocked()
    assert stage.started == [["i1"], ["i2"]]
    stage.cleanup = 1
    inbox.post("i4", when_busy=INTERRUPT)
    assert stage.turn.abort_called
    assert kinds([inbox.post("i5", when_busy=INTERRUPT), inbox.post("s")]) == ["dropped"] * 2
    await trio.sleep(1.5)
    assert stage.started[2:] == [["i3"]]
    for mode in (INTERRUPT, FOLLOWUP):
        assert kinds([inbox.post(mode, when_busy=mode)])[0] == "waits"
        if mode is INTERRUPT:
            await trio.sleep(1.5)
    assert stage.started[3:] == [["i4"]]


async def test_an_interrupt_that_is_dropped_aborts_nothing(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler, cap=1)
    inbox.post("i1", when_busy=INTERRUPT)
    await wait_all_tasks_blocked()
    waits = inbox.post("s")
    lanes.pause("session:alice")
    second = inbox.post("i2", when_busy=INTERRUPT)
    assert kinds([waits]) == ["summarized"]
    await wait_all_tasks_blocked()
    third = inbox.post("i3", when_busy=INTERRUPT)
    assert kinds([second, third]) == ["waits", "dropped"]


async def test_reject_acts_before_the_cap(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP, cap=1)
    waits = inbox.post("waits")
    assert kinds([inbox.post("x", when_busy=REJECT), waits]) == ["rejected", "waits"]


@pytest.mark.parametrize("overflow", list(Overflow))
async def test_replace_acts_before_the_cap(
    lanes: Lanes, stage: Stage, overflow: Overflow, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=2, overflow=overflow)
    receipts = [inbox.post("s"), inbox.post("r1", when_busy=REPLACE)]
    receipts.append(inbox.post("r2", when_busy=REPLACE))
    assert kinds(receipts) == ["waits", "replaced", "waits"]


async def test_no_message_replaces_a_victim(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=1, overflow=Overflow.DROP_OLDEST)
    receipts = [inbox.post("r1", when_busy=REPLACE), inbox.post("s")]
    receipts.append(inbox.post("r2", when_busy=REPLACE))
    assert kinds(receipts) == ["dropped", "dropped", "waits"]


async def test_what_is_being_delivered_is_never_a_victim(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT, cap=2, overflow=Overflow.DROP_OLDEST)
    delivered = [inbox.post("c1"), inbox.post("c2")]
    await stage.end()
    await trio.sleep(1)
    for n in range(5):
        inbox.post(n)
    assert kinds(delivered) == ["in_turn", "in_turn"]
    assert stage.turn.messages == ["c1", "c2"]
    await stage.end()
    assert kinds(delivered) == ["ran", "merged"]


async def test_collected_messages_whose_neighbour_made_room_wait_for_their_time(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=COLLECT, cap=1)
    session = lanes.session("alice")
    inbox.post("a", group="a")
    await stage.end()
    inbox.post("b", group="b")
    assert (session.waiting, session.active) == (1, 0)
    await trio.sleep(1)
    assert stage.started == [["first"], ["a", "b"]]
    assert stage.times[1] == 0.5
    await stage.end()
    inbox.post("now")
    inbox.post("c")
    assert (session.waiting, session.active) == (0, 1)  # it comes, and looks
    await wait_all_tasks_blocked()
    assert (session.waiting, session.active) == (1, 0)
    await trio.sleep(1)
    assert stage.times[2] == 1.5
    await stage.end()


async def test_the_line_has_no_bound_if_there_is_no_cap(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=math.inf)
    for n in range(1000):
        inbox.post(n)
    assert len(inbox.waiting) == 1000
    assert stage.turn.take() == list(range(1000))


async def test_all_that_was_offered_is_accounted_for(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, cap=3)
    for mode in [*WhenBusy] * 2:
        inbox.post(mode, when_busy=mode)
    seen = inbox.statistics()
    assert seen.offered == 15
    assert seen.waiting == 3
    assert seen.waiting + seen.in_turn + sum(seen.settled.values()) == 15


class Echo(LaneInstrument):
    """Posts when a job is submitted, or has settled."""

    def __init__(self) -> None:
        self.inbox: Inbox | None = None
        self.submitted: list[Any] = []
        self.finished: list[Any] = []

    def job_submitted(self, job: Job[Any]) -> None:
        if self.inbox is not None and self.submitted:
            self.inbox.post(self.submitted.pop())

    def job_finished(self, job: Job[Any]) -> None:
        if self.inbox is not None and self.finished:
            self.inbox.post(self.finished.pop())


async def test_an_instrument_may_post_whenever_it_is_told(
    stage: Stage, autojump_clock: MockClock
) -> None:
    echo = Echo()
    async with open_lanes({"main": 4}, instruments=[echo]) as lanes:
        inbox = await busy(lanes, stage, cap=1, overflow=Overflow.DROP_NEWEST)
        echo.inbox = inbox
        echo.submitted = ["e1"]
        dropped = inbox.post("a")
        assert kinds([dropped]) == ["dropped"]
        assert lanes.session("alice").waiting == 1
        echo.finished = ["e2"]
        assert stage.turn.take() == ["e1"]
        assert [receipt.message for receipt in inbox.waiting] == ["e2"]
        assert lanes.session("alice").waiting == 1
        await stage.end()
        assert stage.turn.messages == ["e2"]
        await stage.end()
        assert inbox.statistics().offered == 4


async def test_an_instrument_may_post_to_an_idle_inbox_from_its_own_job(
    stage: Stage, autojump_clock: MockClock
) -> None:
    echo = Echo()
    async with open_lanes({"main": 4}, instruments=[echo]) as lanes:
        echo.inbox = inbox = Inbox(lanes, "alice", stage.handler, when_busy=FOLLOWUP)
        echo.submitted = ["inner"]
        inbox.post("outer")
        await wait_all_tasks_blocked()
        for _ in range(2):
            await stage.end()
        assert sorted(map(str, stage.started)) == ["['inner']", "['outer']"]
        await lanes.wait_idle()
