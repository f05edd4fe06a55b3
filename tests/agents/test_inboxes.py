"""Inboxes: a table of inboxes by session, which keeps busy sessions only."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, kinds
from trio_lanes import (
    Job,
    LaneConfig,
    LaneFullError,
    LaneInstrument,
    Lanes,
    UnknownLaneError,
    open_lanes,
)
from trio_lanes.agents import Inbox, Inboxes, SettledKind, Summary, Turn, WhenBusy

pytestmark = pytest.mark.both_doors

FOLLOWUP = WhenBusy.FOLLOWUP


async def test_a_session_is_in_the_table_while_it_is_busy(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler, when_busy=FOLLOWUP)
    assert len(inboxes) == 0
    first, second = inboxes.post("alice", "one"), inboxes.post("session:alice", "two")
    assert inboxes.sessions == ["alice"]
    assert "alice" in inboxes
    assert "bob" not in inboxes
    assert 5 not in inboxes
    await wait_all_tasks_blocked()
    assert stage.turn.session == "alice"
    assert inboxes.turn("alice") is stage.turn
    assert inboxes.waiting("alice") == [second]
    assert inboxes.turn("bob") is None
    assert inboxes.waiting("bob") == []
    await stage.end()
    assert "1 busy" in repr(inboxes)
    await stage.end()
    assert kinds([first, second]) == ["ran", "ran"]
    assert len(inboxes) == 0
    seen = inboxes.statistics()
    assert seen.offered == seen.settled[SettledKind.RAN] == 2


async def test_sessions_run_beside_each_other_with_the_same_handler(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler)
    inboxes.post("alice", 1)
    inboxes.post("bob", 2)
    inboxes.post("bob", 3)
    await wait_all_tasks_blocked()
    assert sorted(turn.session for turn in stage.turns) == ["alice", "bob"]
    seen = inboxes.statistics()
    assert (seen.offered, seen.waiting, seen.in_turn) == (3, 1, 2)
    assert await inboxes.abort("bob", "enough")
    assert inboxes.sessions == ["alice"]


async def test_aborting_an_idle_session_is_a_checkpoint(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler)
    with assert_checkpoints():
        assert await inboxes.abort("alice")


async def test_an_id_is_remembered_after_the_session_became_idle(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> Any:
        return turn.messages[0]

    inboxes = Inboxes(lanes, handler)
    receipt = inboxes.post("alice", "one", id=7)
    assert (await receipt.settled()).result == "one"
    await wait_all_tasks_blocked()
    assert len(inboxes) == 0
    again = inboxes.post("alice", "again", id=7)
    assert ((await again.settled()).kind, (await again.settled()).result) == ("ran", "one")
    assert again.position is None
    assert not again.cancel()
    assert not again.edit("other")
    assert len(inboxes) == 0
    other = inboxes.post("bob", "one", id=7)
    assert other is not receipt
    assert (await other.settled()).result == "one"
    await trio.sleep(300)
    assert inboxes.post("alice", "one", id=7) is not receipt


async def test_an_id_keeps_the_outcome_and_nothing_else_for_five_minutes(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    class Thing:
        """A message, or a result."""

    turns: list[weakref.ref[Turn]] = []
    error = ValueError("no")

    async def handler(turn: Turn) -> Any:
        turns.append(weakref.ref(turn))
        if turn.session == "bob":
            raise error
        return results.pop(turn.session, None)

    message, results = Thing(), {"alice": Thing()}
    gone = weakref.ref(message)
    kept = weakref.ref(results["alice"])
    inboxes = Inboxes(lanes, handler)
    await inboxes.post("alice", message, id=1).settled()
    failed = await inboxes.post("bob", "x", id=1).settled()
    assert failed.kind is SettledKind.FAILED
    del message, failed
    error.__traceback__ = None
    await trio.sleep(1)
    gc.collect()
    assert gone() is None
    assert [turn() for turn in turns] == [None, None]

    again = inboxes.post("alice", "x", id=1).outcome
    assert again is not None
    assert (again.kind, again.result, again.turn) == (SettledKind.RAN, kept(), None)
    del again
    failed = await inboxes.post("bob", "x", id=1).settled()
    assert (failed.kind, failed.error, failed.turn) == (SettledKind.FAILED, error, None)
    await trio.sleep(300)
    assert kept() is not None
    await inboxes.post("carol", "x").settled()  # any later call forgets what is old
    gc.collect()
    assert kept() is None


@pytest.mark.trio_only("it measures what both doors share")
async def test_a_thousand_idle_sessions_leave_nothing(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    turns: weakref.WeakSet[Turn] = weakref.WeakSet()

    async def handler(turn: Turn) -> None:
        turns.add(turn)
        await trio.sleep(1)

    inboxes = Inboxes(lanes, handler)
    for number in range(1_000):
        inboxes.post(f"user {number}", "hello")
    assert len(inboxes) == 1_000
    await lanes.wait_idle()
    await wait_all_tasks_blocked()
    assert len(inboxes) == 0
    gc.collect()
    assert len(turns) == 0
    assert inboxes.statistics().settled[SettledKind.RAN] == 1_000


async def test_a_post_that_raises_leaves_no_inbox(stage: Stage, autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=0, max_waiting=0)}) as lanes:
        inboxes = Inboxes(lanes, stage.handler)
        with pytest.raises(LaneFullError):
            inboxes.post("alice", "one")
        with pytest.raises(ValueError, match="nonsense"):
            inboxes.post("alice", "one", when_busy="nonsense")  # type: ignore[arg-type]
        assert len(inboxes) == 0
        assert inboxes.statistics().offered == 0


async def test_a_session_that_owes_a_summary_stays_until_its_next_turn(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler, when_busy=FOLLOWUP, cap=1)
    inboxes.post("alice", "one")
    await wait_all_tasks_blocked()
    inboxes.post("alice", "two")
    inboxes.post("alice", "three").cancel()
    await stage.end()
    assert inboxes.sessions == ["alice"]
    inboxes.post("alice", "four")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == [Summary("two"), "four"]
    await stage.end()
    assert len(inboxes) == 0


async def test_messages_that_are_held_are_released_by_session(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler, when_busy=FOLLOWUP, hold_on_failure=True)
    receipts = [inboxes.post("alice", number) for number in range(2)]
    await wait_all_tasks_blocked()
    await stage.fail(OSError())
    assert kinds(receipts) == ["failed", "waits"]
    assert inboxes.is_held("alice")
    assert not inboxes.is_held("bob")
    inboxes.release("bob")
    inboxes.release("alice")
    await wait_all_tasks_blocked()
    await stage.end()
    assert kinds(receipts) == ["failed", "ran"]


async def test_a_hook_that_posts_while_a_message_is_posted_finds_the_same_inbox(
    stage: Stage, autojump_clock: MockClock
) -> None:
    class Posting(LaneInstrument):
        def job_submitted(self, job: Job[Any]) -> None:
            if not receipts:
                receipts.append(None)
                receipts.append(inboxes.post("alice", "from the hook"))

    receipts: list[Any] = []
    async with open_lanes(instruments=[Posting()]) as lanes:
        inboxes = Inboxes(lanes, stage.handler, when_busy=FOLLOWUP)
        receipts.append(inboxes.post("alice", "one"))
        assert len(inboxes) == 1
        for _ in range(2):
            await wait_all_tasks_blocked()
            await stage.end()
        assert kinds(receipts[1:]) == ["ran", "ran"]
        assert len(inboxes) == 0


async def test_the_statistics_count_the_messages_of_all_sessions_that_have_left_the_table(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inboxes = Inboxes(lanes, stage.handler)
    for session in ("alice", "bob", "carol"):
        inboxes.post(session, session)
        await wait_all_tasks_blocked()
        await stage.end()
    assert len(inboxes) == 0
    seen = inboxes.statistics()
    assert seen.offered == seen.settled[SettledKind.RAN] == 3


def options() -> list[dict[str, Any]]:
    return [{"cap": 0}, {"debounce": -1}, {"overflow": "x"}, {"when_busy": "x"}]


@pytest.mark.parametrize("option", options(), ids=str)
async def test_a_bad_option_is_refused_when_the_table_is_made(
    lanes: Lanes, stage: Stage, option: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"cap|debounce|'x'"):
        Inboxes(lanes, stage.handler, **option)
    with pytest.raises(UnknownLaneError):
        Inboxes(lanes, stage.handler, lane="nowhere")
    with pytest.raises(TypeError, match="hold_on_failure"):
        Inbox(lanes, "alice", stage.handler, hold_on_failure=1)  # type: ignore[arg-type]
