"""Inbox: what a turn may do, every way in which it can end, and what that leaves behind."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.agents.inbox_stage import Stage, busy, kinds
from trio_lanes import (
    Job,
    JobCancelledError,
    LaneClearedError,
    LaneConfig,
    LaneFullError,
    LaneInstrument,
    LaneResetError,
    Lanes,
    LanesClosedError,
    UnknownLaneError,
    open_lanes,
)
from trio_lanes.agents import Inbox, RunRegistry, SendRefused, SettledKind, Turn, WhenBusy

pytestmark = pytest.mark.both_doors

FOLLOWUP, COLLECT, INTERRUPT = WhenBusy.FOLLOWUP, WhenBusy.COLLECT, WhenBusy.INTERRUPT


# ---- a turn as a run


async def test_a_turn_is_a_run(lanes: Lanes, stage: Stage, autojump_clock: MockClock) -> None:
    await busy(lanes, stage)
    turn = stage.turn
    registry = RunRegistry()
    with registry.running("alice", turn):
        assert registry.send("alice", "x").reason is SendRefused.NOT_STREAMING
        turn.is_streaming = True
        with turn.compacting():
            assert turn.is_compacting
            assert registry.send("alice", "x").reason is SendRefused.COMPACTING
        assert not turn.is_compacting
        assert registry.send("alice", "x")
        assert turn.take() == ["x"]
        assert registry.abort("alice", "enough")
        assert registry.send("alice", "x").reason is SendRefused.STOPPED
    await wait_all_tasks_blocked()
    assert not turn.queue_message("x")


async def test_is_streaming_is_false_at_first_and_informs_the_registry_only(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    assert not stage.turn.is_streaming
    inbox.post("steer")
    assert stage.turn.take() == ["steer"]


async def test_a_message_that_a_turn_cannot_queue_is_refused(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=0)) as lanes:
        await busy(lanes, stage)
        assert not stage.turn.queue_message("x")
        await stage.end()


async def test_a_message_that_a_turn_would_drop_is_refused(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    await busy(lanes, stage, cap=1, overflow="drop_newest")
    assert stage.turn.queue_message("x")
    assert not stage.turn.queue_message("y")


async def test_what_a_turn_has_queued_but_not_taken_is_run_next(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    await busy(lanes, stage)
    assert stage.turn.queue_message("x")
    await stage.end()
    assert stage.started == [["first"], ["x"]]
    await stage.end()


async def test_take_gives_nothing_while_compacting(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    inbox.post("steer")
    with stage.turn.compacting():
        with stage.turn.compacting():
            assert stage.turn.take() == []
        assert stage.turn.take() == []
    assert stage.turn.take() == ["steer"]


async def test_take_gives_nothing_after_an_abort_and_after_the_end(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    stage.cleanup = 1
    stage.turn.abort()
    stage.turn.abort()
    inbox.post("s1")
    assert stage.turn.take() == []
    await trio.sleep(1.5)
    assert stage.started == [["first"], ["s1"]]
    assert stage.turns[0].take() == []
    inbox.post("s2")
    assert stage.turns[0].take() == []
    stage.turns[0].abort("too late")
    assert stage.turns[1].take() == ["s2"]


async def test_aborting_a_turn_leaves_alone_what_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("second")
    stage.turn.abort("enough")
    await wait_all_tasks_blocked()
    assert stage.first is not None
    settled = await stage.first.settled()
    assert settled.kind is SettledKind.CANCELLED
    assert isinstance(settled.error, JobCancelledError)
    assert settled.error.reason == "enough"
    await stage.end()
    assert kinds([receipt]) == ["ran"]


async def test_turns_run_in_the_context_of_the_poster(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    var: ContextVar[int] = ContextVar("var")
    seen: list[tuple[Any, int]] = []

    async def handler(turn: Turn) -> None:
        seen.append((turn.messages[0], var.get()))
        var.set(99)
        await trio.sleep(1)

    inbox = Inbox(lanes, "alice", handler, when_busy=FOLLOWUP)

    async def person(n: int) -> None:
        var.set(n)
        await trio.sleep(0.1 * n)
        await inbox.post(n).settled()

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(person, n)
    assert seen == [(n, n) for n in range(4)]


async def test_a_turn_that_a_later_message_delays_runs_in_the_context_of_the_first_of_its_messages(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    var: ContextVar[str] = ContextVar("var")
    seen: list[tuple[list[Any], str]] = []

    async def handler(turn: Turn) -> None:
        seen.append(([*turn.messages], var.get()))
        await trio.sleep(1)

    inbox = Inbox(lanes, "alice", handler, when_busy=COLLECT, debounce=1, max_wait=60)
    for name in ("one", "two", "three"):
        var.set(name)
        inbox.post(name)
        await trio.sleep(0.3)
    await trio.sleep(9)
    assert seen == [(["one"], "one"), (["two", "three"], "two")]


# ---- the ways in which a turn can end


async def returns(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    await stage.end()


async def raises(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    await stage.fail(ValueError("no"))


async def is_aborted(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    stage.turn.abort()


async def is_interrupted(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    inbox.post("interrupt", when_busy=INTERRUPT)
    await wait_all_tasks_blocked()
    await stage.end()


async def is_aborted_with_the_inbox(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    assert await inbox.abort()


async def has_its_job_cancelled(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    stage.turn.job.cancel()


async def is_cleared_and_returns(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    lanes.clear("session:alice")
    await stage.end()


async def is_reset(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    lanes.reset("session:alice")


async def is_reset_and_stuck(lanes: Lanes, inbox: Inbox, stage: Stage) -> None:
    stage.cleanup = 100
    lanes.reset("main")


WAYS: list[tuple[Callable[[Lanes, Inbox, Stage], Awaitable[None]], str]] = [
    (returns, "ran"),
    (raises, "failed"),
    (is_aborted, "cancelled"),
    (is_interrupted, "cancelled"),
    (is_aborted_with_the_inbox, "cancelled"),
    (has_its_job_cancelled, "cancelled"),
    (is_cleared_and_returns, "ran"),
    (is_reset, "cancelled"),
    (is_reset_and_stuck, "cancelled"),
]


@pytest.mark.parametrize(("way", "kind"), WAYS, ids=lambda way: getattr(way, "__name__", None))
@pytest.mark.parametrize("waiting", [0, 2])
@pytest.mark.filterwarnings("default")
async def test_every_way_a_turn_can_end_leaves_the_inbox_usable(
    lanes: Lanes,
    stage: Stage,
    way: Callable[..., Awaitable[None]],
    kind: str,
    waiting: int,
    autojump_clock: MockClock,
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipts = [inbox.post(n) for n in range(waiting)]
    await way(lanes, inbox, stage)
    await wait_all_tasks_blocked()
    assert stage.first is not None
    assert kinds([stage.first]) == [kind]
    cancelled = way in (is_cleared_and_returns, is_aborted_with_the_inbox)
    if not cancelled:
        for n in range(waiting):
            assert stage.turn.messages == [n]
            await stage.end()
    assert kinds(receipts) == ["cancelled" if cancelled else "ran"] * waiting
    assert not inbox.is_busy
    later = inbox.post("later")
    await wait_all_tasks_blocked()
    assert stage.turn.messages == ["later"]
    await stage.end("well")
    assert (await later.settled()).result == "well"
    seen = inbox.statistics()
    assert seen.offered == sum(seen.settled.values())


async def test_a_turn_that_returns_after_an_abort_has_run(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "all the same"

    inbox = Inbox(lanes, "alice", handler)
    receipt = inbox.post("hello")
    await wait_all_tasks_blocked()
    assert inbox.turn is not None
    inbox.turn.abort()
    assert (await receipt.settled()).result == "all the same"


async def test_a_turn_that_raises_besides_its_abort_has_failed(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError

    inbox = Inbox(lanes, "alice", handler)
    receipt = inbox.post("hello")
    await wait_all_tasks_blocked()
    assert inbox.turn is not None
    inbox.turn.abort()
    settled = await receipt.settled()
    assert settled.kind is SettledKind.FAILED
    assert isinstance(settled.error, ExceptionGroup)
    assert settled.error.subgroup(ValueError) is not None


async def test_a_turn_that_raises_besides_the_cancellation_of_its_job_has_failed(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> None:
        if turn.messages == ["hello"]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError

    inbox = Inbox(lanes, "alice", handler)
    receipts = [inbox.post("hello"), inbox.post("next")]
    await wait_all_tasks_blocked()
    assert inbox.turn is not None
    inbox.turn.job.cancel()
    settled = await receipts[0].settled()
    assert settled.kind is SettledKind.FAILED
    assert isinstance(settled.error, ExceptionGroup)
    assert settled.error.subgroup(trio.Cancelled) is None
    await receipts[1].settled()
    assert kinds(receipts) == ["failed", "ran"]


@pytest.mark.trio_only("it is about scopes of Trio's")
async def test_a_turn_that_leaves_a_cancel_scope_open_has_failed_as_its_job_has(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def careless(turn: Turn) -> None:
        trio.CancelScope().__enter__()

    receipt = Inbox(lanes, "alice", careless).post("x")
    outcome = await receipt.settled()
    assert outcome.kind is SettledKind.FAILED
    assert outcome.turn is not None
    assert outcome.error is outcome.turn.job.exception
    with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
        await outcome.turn.job.wait()


async def test_the_very_error_that_a_turn_raised_is_told(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    await busy(lanes, stage)
    error = ExceptionGroup("two", [ValueError(), KeyError()])
    await stage.fail(error)
    assert stage.first is not None
    assert (await stage.first.settled()).error is error


async def test_a_handler_that_is_not_async_fails_its_turn(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", lambda turn: None)  # type: ignore[arg-type,return-value]
    settled = await inbox.post("hello").settled()
    assert settled.kind is SettledKind.FAILED
    assert isinstance(settled.error, TypeError)


@pytest.mark.parametrize("looks", [True, False])
async def test_the_failure_of_a_turn_is_logged_if_it_is_not_retrieved(
    lanes: Lanes,
    stage: Stage,
    looks: bool,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    inbox = await busy(lanes, stage)
    first, stage.first = stage.first, None
    assert first is not None
    await stage.fail(ValueError("no"))
    if looks:
        assert isinstance((await first.settled()).error, ValueError)
    del first, inbox
    stage.__init__()  # type: ignore[misc]
    await wait_all_tasks_blocked()
    gc.collect()
    assert ("never retrieved" in caplog.text) is not looks


# ---- Ctrl-C


@pytest.mark.trio_only("asyncio lets a KeyboardInterrupt out of the loop")
async def test_ctrl_c_in_a_handler_leaves_the_lanes_and_every_message_settles(
    autojump_clock: MockClock,
) -> None:
    receipts = []

    async def handler(turn: Turn) -> None:
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)

    with pytest.RaisesGroup(KeyboardInterrupt):
        async with open_lanes() as lanes:
            inbox = Inbox(lanes, "alice", handler, when_busy=FOLLOWUP)
            receipts = [inbox.post(n) for n in range(3)]
    assert kinds(receipts) == ["failed", "cancelled", "cancelled"]
    settled = await receipts[0].settled()
    assert isinstance(settled.error, JobCancelledError)
    assert isinstance(settled.error.__cause__, KeyboardInterrupt)
    assert isinstance((await receipts[1].settled()).error, LanesClosedError)
    with pytest.raises(LanesClosedError):
        inbox.post("later")
    assert inbox.statistics().offered == 3


@pytest.mark.trio_only("it runs Trio")
def test_ctrl_c_while_a_message_is_posted_comes_when_it_was_posted(stage: Stage) -> None:
    class Strikes:
        def __str__(self) -> str:
            signal.raise_signal(signal.SIGINT)
            return "struck"

    async def main() -> None:
        async with open_lanes() as lanes:
            inbox = await busy(lanes, stage, cap=1)
            inbox.post(Strikes())
            second = None
            with pytest.raises(KeyboardInterrupt):
                second = inbox.post("second")
                await trio.lowlevel.checkpoint()
            assert second is not None
            assert kinds([second]) == ["waits"]
            await stage.end()
            assert stage.turn.messages == ["struck", "second"]
            await stage.end()

    trio.run(main)


async def test_lanes_that_are_cancelled_cancel_every_message(
    stage: Stage, autojump_clock: MockClock
) -> None:
    with trio.CancelScope() as scope:
        async with open_lanes() as lanes:
            inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
            second = inbox.post("second")
            scope.cancel()
    assert stage.first is not None
    assert kinds([stage.first, second]) == ["cancelled", "cancelled"]


# ---- clear and reset


async def test_a_clear_cancels_what_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipts = [inbox.post(n) for n in range(2)]
    assert lanes.clear("session:alice", reason="tidy") == 1
    later = inbox.post("later")
    assert kinds([*receipts, later]) == ["cancelled", "cancelled", "waits"]
    error = (await receipts[0].settled()).error
    assert isinstance(error, LaneClearedError)
    assert error.reason == "tidy"
    await stage.end()
    assert stage.started == [["first"], ["later"]]


async def test_a_clear_is_noticed_by_each_waiter(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    receipt = inbox.post("second")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receipt.settled)
        await wait_all_tasks_blocked()
        lanes.clear()
    assert kinds([receipt]) == ["cancelled"]


async def test_a_turn_takes_nothing_that_was_cleared(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    inbox.post("steer")
    lanes.clear()
    assert stage.turn.take() == []
    assert inbox.waiting == []


async def test_a_reset_is_noticed_by_each_waiter(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    await busy(lanes, stage)
    stage.cleanup = 100
    assert stage.first is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.first.settled)
        await wait_all_tasks_blocked()
        lanes.reset("session:alice")
        start = trio.current_time()
    assert trio.current_time() == start
    assert isinstance((await stage.first.settled()).error, LaneResetError)


async def test_after_a_reset_the_successor_runs_and_what_the_old_turn_does_changes_nothing(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    log: list[Any] = []

    async def handler(turn: Turn) -> str:
        if turn.messages == ["old"]:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            turn.is_streaming = True
            log.append(turn.take())
            log.append(turn.queue_message("x"))
            turn.abort()
        else:
            await trio.sleep(20)
        return "value"

    inbox = Inbox(lanes, "alice", handler)
    old = inbox.post("old")
    await trio.sleep(1)
    new = inbox.post("new")
    assert lanes.reset("session:alice") == 1
    assert kinds([old, new]) == ["cancelled", "waits"]
    await wait_all_tasks_blocked()
    assert inbox.turn is not None
    assert inbox.turn.messages == ["new"]
    steer = inbox.post("steer")
    await trio.sleep(12)
    assert log == [[], False]
    assert kinds([old, new, steer]) == ["cancelled", "in_turn", "waits"]
    assert (await new.settled()).result == "value"


async def test_a_reset_of_a_job_that_has_not_begun_keeps_its_message(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    receipt = inbox.post("hello")
    assert lanes.reset() == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receipt.settled)
        await wait_all_tasks_blocked()
        assert stage.started == [["hello"]]
        await stage.end()
    assert kinds([receipt]) == ["ran"]


@pytest.mark.parametrize("begins_late", [False, True])
async def test_after_a_reset_a_message_whose_turn_had_not_begun_is_run_without_a_waiter(
    begins_late: bool, stage: Stage, autojump_clock: MockClock
) -> None:
    async def wrap(job: Job[Any], body: Callable[[], Awaitable[Any]]) -> Any:
        if begins_late:
            await trio.sleep(5)
        return await body()

    async with open_lanes({"main": LaneConfig(wrap=wrap)}) as lanes:
        Inbox(lanes, "alice", stage.handler).post("hello")
        if begins_late:
            await trio.sleep(1)
        assert lanes.reset() == 1
        await trio.sleep(10)
        assert stage.started == [["hello"]]
        await stage.end()


async def test_a_message_whose_job_a_hook_resets_as_it_is_submitted_is_run(
    stage: Stage, autojump_clock: MockClock
) -> None:
    class ResetsTheFirst(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            if not given_up:
                given_up.append(job)
                assert lanes.reset() == 1

    given_up: list[Job[Any]] = []
    async with open_lanes({"main": 1}, instruments=[ResetsTheFirst()]) as lanes:
        Inbox(lanes, "alice", stage.handler).post("hello")
        await wait_all_tasks_blocked()
        assert stage.started == [["hello"]]
        assert len(given_up) == 1
        await stage.end()


@pytest.mark.parametrize("when", ["posted", "begun", "cancelled"])
async def test_a_message_whose_job_a_hook_cancels_as_it_is_submitted_is_cancelled(
    when: str, stage: Stage, autojump_clock: MockClock
) -> None:
    class CancelsOne(LaneInstrument):
        armed = False

        def job_submitted(self, job: Job[Any]) -> None:
            if self.armed:
                self.armed = False
                job.cancel("by a hook")

    hook = CancelsOne()
    async with open_lanes(instruments=[hook]) as lanes:
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
        hook.armed = when == "posted"
        first = inbox.post("a")
        if when != "posted":
            second = inbox.post("b")
            hook.armed = True
            await stage.end()  # the turn of "a" begins, and "b" gets a job
            assert stage.started == [["first"], ["a"]]
            if when == "begun":
                await stage.end()
            else:
                stage.turn.job.cancel()
                await wait_all_tasks_blocked()
            first = second
        assert "cancelled" in repr(first)  # which asks nothing, unlike `outcome`
        assert (await first.settled()).kind is SettledKind.CANCELLED
        await stage.end()


async def test_a_message_asks_twice_at_most_whether_a_job_has_ended(
    lanes: Lanes, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(job: Job[Any]) -> Any:
        asked.append(sys._getframe(1).f_code.co_filename)
        return is_done(job)

    is_done, asked = Job.done.fget, list[str]()  # type: ignore[attr-defined]
    inbox = Inbox(lanes, "alice", stage.handler)
    monkeypatch.setattr(Job, "done", property(done))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.post("hello").settled)
        await wait_all_tasks_blocked()
        await stage.end()
    assert 1 <= len([path for path in asked if "agents" in Path(path).parts]) <= 2


async def test_a_message_that_cannot_be_kept_after_a_reset_is_cancelled(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler)
        receipt = inbox.post("hello")
        lanes.close()
        assert lanes.reset() == 1
        settled = await receipt.settled()
        assert settled.kind is SettledKind.CANCELLED
        assert isinstance(settled.error, LanesClosedError)
        assert isinstance(settled.error.__cause__, LaneResetError)


async def test_a_wrap_that_never_calls_the_body_cancels_what_waits(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async def wrap(job: Job[Any], body: Callable[[], Awaitable[Any]]) -> None:
        await trio.lowlevel.checkpoint()

    async with open_lanes({"main": LaneConfig(wrap=wrap)}) as lanes:
        receipt = Inbox(lanes, "alice", stage.handler).post("hello")
        assert (await receipt.settled()).kind is SettledKind.CANCELLED


# ---- abort


async def test_abort_cancels_what_waits_then_the_turn_and_returns_at_its_end(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    stage.cleanup = 2
    receipts = [inbox.post("a"), inbox.post("b", when_busy=COLLECT)]
    ended: list[tuple[float, bool]] = []

    async def abort() -> None:
        answer = await inbox.abort("enough")
        ended.append((trio.current_time(), answer))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(abort)
        await wait_all_tasks_blocked()
        assert stage.first is not None
        assert kinds([*receipts, stage.first]) == ["cancelled", "cancelled", "in_turn"]
        assert lanes.session("alice").waiting == 0
        during = inbox.post("during")
        assert stage.turn.take() == []
    assert ended == [(2, True)]
    await wait_all_tasks_blocked()
    assert stage.started == [["first"], ["during"]]
    assert stage.times[1] == 2
    error = (await receipts[0].settled()).error
    assert isinstance(error, JobCancelledError)
    assert error.reason == "enough"
    assert kinds([stage.first, during]) == ["cancelled", "in_turn"]


async def test_abort_gives_up_waiting_at_its_timeout(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    stage.cleanup = 20
    assert not await inbox.abort()
    assert trio.current_time() == 15
    assert not await inbox.abort(timeout=-1)
    assert trio.current_time() == 15
    assert await inbox.abort(timeout=6)
    assert trio.current_time() == 20


async def test_abort_of_an_idle_inbox_is_true_and_a_checkpoint(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    receipt = inbox.post("hello")
    with assert_checkpoints():
        assert await inbox.abort()
    assert kinds([receipt]) == ["cancelled"]
    await wait_all_tasks_blocked()
    assert stage.turns == []


@pytest.mark.many_seeds(20)
async def test_what_is_posted_right_after_an_abort_is_run_by_the_job_that_was_granted(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = Inbox(lanes, "alice", stage.handler)
    inbox.post("first")
    inbox.post("i", when_busy=INTERRUPT)
    await inbox.abort()
    receipt = inbox.post("second")
    await wait_all_tasks_blocked()
    assert stage.started == [["second"]]
    await stage.end()
    assert kinds([receipt]) == ["ran"]


async def test_a_turn_that_aborts_its_own_inbox_is_cancelled(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    async def handler(turn: Turn) -> None:
        await inbox.abort("by itself")

    inbox = Inbox(lanes, "alice", handler)
    settled = await inbox.post("hello").settled()
    assert settled.kind is SettledKind.CANCELLED


async def test_abort_returns_when_the_turn_is_reset(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    stage.cleanup = 10
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.abort)
        await wait_all_tasks_blocked()
        lanes.reset()
    assert trio.current_time() == 0


# ---- between two turns


@pytest.mark.many_seeds(20)
async def test_a_message_sent_between_the_end_of_the_run_and_the_free_slot_is_not_lost(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    seen: list[Any] = []

    async def handler(turn: Turn) -> None:
        seen.extend(turn.messages)
        await trio.sleep(1)
        seen.extend(turn.take())
        await trio.lowlevel.checkpoint()

    inbox = Inbox(lanes, "alice", handler)
    receipts = []
    inbox.post(0)
    await trio.sleep(1)
    for n in range(1, 20):
        receipts.append(inbox.post(n))
        await trio.lowlevel.checkpoint()
    for receipt in receipts:
        await receipt.settled()
    assert seen == list(range(20))


async def test_one_successor_is_queued_while_anything_waits(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    session = lanes.session("alice")
    assert session.waiting == 0
    for n in range(3):
        inbox.post(n)
        assert session.waiting == 1
    stage.turn.take()
    assert session.waiting == 0  # it would have found nothing
    inbox.post("c", when_busy=COLLECT)
    inbox.post("s")
    assert session.waiting == 1
    await stage.end()
    assert stage.turn.messages == ["c"]
    assert session.waiting == 1
    stage.turn.take()
    assert session.waiting == 0
    await stage.end()
    assert lanes.sessions() == []


# ---- lanes that take no more


async def test_post_raises_if_the_lane_is_full_and_has_taken_nothing(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = await busy(lanes, stage)
        other = lanes.submit_nowait(trio.sleep, 1, session="alice")
        for mode in (WhenBusy.STEER, FOLLOWUP, COLLECT, INTERRUPT, WhenBusy.REPLACE):
            with pytest.raises(LaneFullError):
                inbox.post("x", when_busy=mode, id="x")
        assert not stage.turn.abort_called
        assert inbox.waiting == []
        assert inbox.statistics().offered == 1
        other.cancel()
        assert kinds([inbox.post("x", id="x")]) == ["waits"]
        await stage.end()
        await stage.end()


async def test_post_raises_if_an_idle_inbox_finds_its_lane_full(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=0)}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        inbox = Inbox(lanes, "alice", stage.handler)
        with pytest.raises(LaneFullError):
            inbox.post("x")
        assert not inbox.is_busy
        await job.wait()


async def test_where_no_successor_fits_the_ending_turns_job_runs_what_waits(
    stage: Stage, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
        receipts = [inbox.post(n) for n in range(3)]
        async with trio.open_nursery() as nursery:
            # it waits for room, so it has it before the next successor
            nursery.start_soon(lanes.session("alice").submit, trio.sleep, 1)
            await wait_all_tasks_blocked()
            await stage.end()
            job = stage.turn.job
            assert stage.turn.messages == [0]
            await stage.fail(ValueError("no"))
            assert stage.turn.messages == [1]
            assert stage.turn.job is job
            assert "the same job runs the next turn" in caplog.text
            stage.turn.abort()
            await wait_all_tasks_blocked()
            assert stage.turn.messages == [2]
            assert stage.turn.job is job
            await stage.end()
        assert kinds(receipts) == ["failed", "cancelled", "ran"]


async def in_a_full_lane(lanes: Lanes, stage: Stage, nursery: trio.Nursery) -> Inbox:
    """An inbox with an active turn and a line, without a successor."""
    inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
    inbox.post("second")
    nursery.start_soon(lanes.session("alice").submit, trio.sleep, 1)
    await wait_all_tasks_blocked()
    inbox.post("c", when_busy=COLLECT)
    await stage.end()
    assert stage.turn.messages == ["second"]
    return inbox


async def test_in_a_full_lane_the_ending_job_does_not_wait_for_the_debounce(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        async with trio.open_nursery() as nursery:
            await in_a_full_lane(lanes, stage, nursery)
            await stage.end()
            assert stage.turn.messages == ["c"]
            assert trio.current_time() == 0
            await stage.end()


async def test_a_job_that_comes_too_early_in_a_full_lane_does_not_wait_for_the_debounce(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = await busy(lanes, stage, when_busy=COLLECT)
        inbox.post("c1")
        await trio.sleep(0.25)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.session("alice").submit, trio.sleep, 1)
            await wait_all_tasks_blocked()
            inbox.post("c2")  # due at 0.75, but the only place is taken by what comes at 0.5
            await stage.end()
            await trio.sleep(1)
            assert stage.started == [["first"], ["c1", "c2"]]
            assert stage.times[1] == 0.5
            await stage.end()


@pytest.mark.parametrize("end", ["cancel", "reset"])
async def test_what_no_job_can_run_any_more_is_cancelled(
    stage: Stage, autojump_clock: MockClock, end: str
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        async with trio.open_nursery() as nursery:
            inbox = await in_a_full_lane(lanes, stage, nursery)
            (receipt,) = inbox.waiting
            lanes.pause("session:alice")
            if end == "cancel":
                stage.turn.job.cancel()
            else:
                lanes.reset("session:alice")
            settled = await receipt.settled()
            assert settled.kind is SettledKind.CANCELLED
            assert isinstance(settled.error, LaneFullError)
            lanes.resume("session:alice")


async def test_a_turn_that_outlives_the_cancellation_of_its_job_starts_no_other_in_it(
    lanes: Lanes, autojump_clock: MockClock
) -> None:
    jobs = []

    async def handler(turn: Turn) -> None:
        jobs.append(turn.job)
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            pass

    inbox = Inbox(lanes, "alice", handler, when_busy=FOLLOWUP)
    receipts = [inbox.post(n) for n in range(2)]
    await wait_all_tasks_blocked()
    jobs[0].cancel()
    await receipts[1].settled()
    assert kinds(receipts) == ["ran", "ran"]
    assert jobs[0] is not jobs[1]


async def test_a_job_that_was_cancelled_starts_no_turn_also_in_a_full_lane(
    autojump_clock: MockClock,
) -> None:
    started: list[Any] = []

    async def handler(turn: Turn) -> None:
        started.extend(turn.messages)
        if turn.messages == ["second"]:
            turn.job.cancel()

    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = Inbox(lanes, "alice", handler, when_busy=FOLLOWUP)
        receipts = [inbox.post("first")]
        await wait_all_tasks_blocked()
        lanes.pause("session:alice")
        receipts += [inbox.post("second"), inbox.post("third")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.session("alice").submit, trio.sleep, 1)
            await wait_all_tasks_blocked()
            lanes.resume("session:alice")
        await wait_all_tasks_blocked()
        assert kinds(receipts) == ["ran", "ran", "cancelled"]
        assert started == ["first", "second"]
        assert isinstance((await receipts[2].settled()).error, LaneFullError)


async def test_collected_messages_share_the_one_place_that_a_full_lane_has(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = await busy(lanes, stage, when_busy=COLLECT)
        for n in range(4):
            inbox.post(n)
            await trio.sleep(0.25)
        await stage.end()
        assert stage.started == [["first"]]
        assert lanes.session("alice").waiting == 1
        await trio.sleep(1)
        assert stage.started == [["first"], [0, 1, 2, 3]]
        assert stage.times[1] == 1.25
        await stage.end()


async def test_a_full_lane_refuses_what_it_would_run_too_late(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
        inbox = await busy(lanes, stage, when_busy=COLLECT)
        receipts = [inbox.post("c")]
        receipts.append(inbox.post("f", when_busy=FOLLOWUP))  # seen to when the turn ends
        await stage.end()
        assert stage.turn.messages == ["c"]
        await stage.end()
        await stage.end()
        assert kinds(receipts) == ["ran", "ran"]
        inbox.post("first")
        await wait_all_tasks_blocked()
        receipts.append(inbox.post("c"))
        await stage.end()
        with pytest.raises(LaneFullError):
            inbox.post("f", when_busy=FOLLOWUP)
        assert kinds(receipts) == ["ran", "ran", "waits"]
        await trio.sleep(1)
        await stage.end()


async def test_post_raises_if_the_lanes_are_closed_and_has_taken_nothing(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async with open_lanes() as lanes:
        inbox = await busy(lanes, stage)
        steer = inbox.post("steer")
        lanes.close("enough")
        for mode in WhenBusy:
            with pytest.raises(LanesClosedError, match="enough"):
                inbox.post("x", when_busy=mode)
        assert inbox.waiting == [steer]
        assert inbox.statistics().offered == 2
        await stage.end()
        assert stage.turn.messages == ["steer"]
        await stage.end()


async def test_a_turn_may_post_while_the_lanes_close(autojump_clock: MockClock) -> None:
    receipts = []

    async def handler(turn: Turn) -> None:
        await trio.sleep(1)
        if turn.messages == ["first"]:
            receipts.append(inbox.post("second", when_busy=FOLLOWUP))

    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", handler)
        receipts.append(inbox.post("first"))
        lanes.close()
    assert kinds(receipts) == ["ran", "ran"]


async def test_what_waits_when_the_lanes_are_shut_is_cancelled(autojump_clock: MockClock) -> None:
    async def handler(turn: Turn) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

    receipts = []
    with trio.CancelScope() as scope:
        async with open_lanes({"main": 1}, sessions=LaneConfig(max_waiting=1)) as lanes:
            inbox = Inbox(lanes, "alice", handler, when_busy=FOLLOWUP)
            receipts += [inbox.post("first")]
            await wait_all_tasks_blocked()
            receipts += [inbox.post("second"), inbox.post("third")]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lanes.session("alice").submit, trio.sleep, 1)
                await trio.sleep(1.5)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert kinds(receipts) == ["ran", "ran", "cancelled"]
    assert isinstance((await receipts[2].settled()).error, LanesClosedError)


async def test_a_wrap_that_calls_the_body_again_runs_no_message_again(
    stage: Stage, autojump_clock: MockClock
) -> None:
    async def twice(job: Job[Any], body: Callable[[], Awaitable[Any]]) -> None:
        await body()
        await body()

    async with open_lanes({"main": LaneConfig(wrap=twice)}) as lanes:
        inbox = await busy(lanes, stage, when_busy=FOLLOWUP)
        receipts = [inbox.post(n) for n in range(2)]
        for _ in range(3):
            await stage.end()
        assert stage.started == [["first"], [0], [1]]
        assert kinds(receipts) == ["ran", "ran"]
        assert not inbox.is_busy
        await lanes.wait_idle()


async def test_post_raises_if_the_lane_was_removed(stage: Stage, autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "side": 1}) as lanes:
        inbox = Inbox(lanes, "alice", stage.handler, lane="side")
        lanes.configure({"side": None})
        with pytest.raises(UnknownLaneError):
            inbox.post("x")
        assert not inbox.is_busy


async def test_logging_knows_the_inbox_by_its_session(
    lanes: Lanes, stage: Stage, autojump_clock: MockClock
) -> None:
    inbox = await busy(lanes, stage)
    receipt = inbox.post("s")
    assert "session 'alice', active, 1 waiting" in repr(inbox)
    assert repr(receipt).endswith(", waits>")
    assert repr(stage.first).endswith(", in_turn>")
    assert repr(stage.turn).endswith("1 messages, active>")
    stage.turn.take()
    await stage.end()
    assert "idle, 0 waiting" in repr(inbox)
    assert repr(receipt).endswith(", steered>")
    assert repr(stage.turn).endswith("ended>")
    logging.getLogger("trio_lanes").debug("%r", inbox)
