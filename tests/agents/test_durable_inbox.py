"""Durable inboxes: modes, order and receipts of messages that are jobs of a store."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.agents.durable_stage import DurableStage, brief
from tests.durable.postgres import server as postgres_server
from tests.durable.valkey import clock as valkey_clock
from tests.durable.valkey import server as valkey_server
from tests.support.needs import need
from trio_lanes import JobCancelledError, LaneDeadlockError
from trio_lanes.agents import (
    DurableInbox,
    DurableTurn,
    MessageState,
    Overflow,
    RunRegistry,
    SendRefused,
    SettledKind,
    SharedRunRegistry,
    Summary,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    JobDeadError,
    MemoryStore,
    PayloadError,
    RetryPolicy,
    SqliteStore,
    StoreUnavailableError,
    ValkeyStore,
    open_durable_lanes,
)
from trio_lanes.durable.acts.inspection import QueueOf
from trio_lanes.durable.acts.jobs import Enqueue

pytestmark = pytest.mark.both_doors

IN_TRIO = pytest.mark.trio_only("its threads and servers take time, which stands still only there")
REAL = (pytest.mark.real_processes, IN_TRIO)
STORES = [
    "memory",
    pytest.param("sqlite", marks=IN_TRIO),
    pytest.param("valkey", marks=REAL),
    # inboxes ask of a store what the conformance suite holds of each
    pytest.param("postgres", marks=(*REAL, pytest.mark.thorough)),
]
_names = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    need("PostgreSQL")
    program = postgres_server.programs()
    assert program is not None
    with closing_server(postgres_server.Server(program)) as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[valkey_server.Server]:
    need("Valkey")
    with closing_server(valkey_server.Server(valkey_server.programs()["valkey"])) as server:
        yield server


@contextmanager
def closing_server(server: Any) -> Iterator[Any]:
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mock_clock(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The clock of Trio and of the store."""
    if kind in ("memory", "sqlite"):
        yield MockClock()
        return
    server = request.getfixturevalue(kind)
    clock: Any
    if kind == "postgres":
        from tests.durable.postgres import clock as postgres_clock

        clock = postgres_clock.StoreClock(server.dsn())
    else:
        clock = valkey_clock.StoreClock(server)
    yield clock
    clock.close()


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, mock_clock: Any
) -> DurableStage:
    name = f"inbox_{next(_names)}"
    if kind == "memory":
        return DurableStage(MemoryStore(), mock_clock)
    if kind == "sqlite":
        return DurableStage(SqliteStore(tmp_path / "jobs.db"), mock_clock)
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        mock_clock.prepare(name)
        from trio_lanes.durable import PostgresStore

        store: Any = PostgresStore(server.dsn(), namespace=name, patience=24)
    else:
        store = valkey_clock.on_test_time(ValkeyStore(server.url, namespace=name, patience=24))
    return DurableStage(store, mock_clock, pause=0.01)


async def test_messages_of_a_session_are_handled_one_at_a_time_in_order(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        receipts = [await inbox.post(text) for text in ("gate 1", "b", "c")]
        await stage.settle()
        assert [await one.state() for one in receipts] == ["in_turn", "waits", "waits"]
        assert [await one.position() for one in receipts] == [None, 0, 1]
        assert await receipts[0].outcome() is None
        assert stage.log == [["gate 1"]]
        stage.gate("gate 1").set()
        settled = [await one.settled() for one in receipts]
        assert list(map(brief, settled)) == [
            ("ran", f"answer to {text}") for text in ("gate 1", "b", "c")
        ]
        assert stage.log == [["gate 1"], ["b"], ["c"]]
        assert [await one.state() for one in receipts] == [MessageState.SETTLED] * 3
        assert [turn.ids for turn in stage.turns] == [[one.id] for one in receipts]
        assert not await inbox.is_busy()
        assert {turn.session for turn in stage.turns} == {"alice"}


async def test_a_turn_takes_the_steers_at_the_head_of_the_queue(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox()
        first = await inbox.post("gate take")
        await stage.settle()
        steers = [await inbox.post(text, id=text) for text in ("s1", "s2")]
        after = await inbox.post("f", when_busy=WhenBusy.FOLLOWUP)
        late = await inbox.post("s3")
        assert len(await inbox.waiting()) == 4
        stage.gate("gate take").set()
        assert brief(await first.settled()) == ("ran", "answer to gate take")
        assert [brief(await one.settled()) for one in steers] == ["steered"] * 2
        assert brief(await after.settled()) == ("ran", "answer to f")
        assert brief(await late.settled()) == ("ran", "answer to s3")
        assert stage.log == [["gate take"], ("took", ["s1", "s2"]), ["f"], ["s3"]]
        assert stage.turns[0].steers == [("s1", "s1"), ("s2", "s2")]


async def test_a_turn_takes_steers_of_its_group_and_none_before_an_interrupt(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox()
        await inbox.post("gate take", group="g")
        await stage.settle()
        await inbox.post("mine", group="g")
        await inbox.post("other", group="h")
        stage.gate("gate take").set()
        await stage.settle()
        assert stage.log == [["gate take"], ("took", ["mine"]), ["other"]]
        assert [turn.group for turn in stage.turns] == ["g", "h"]


async def test_collected_messages_of_a_group_share_a_turn_when_they_are_due(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=1.0, max_wait=5.0)
        first = await inbox.post("gate 1")
        await stage.settle()
        receipts = [await inbox.post(text, group=text[0]) for text in ("a1", "a2", "b1", "b2")]
        stage.gate("gate 1").set()
        await stage.settle()
        # other messages are behind those of group a, and more may still join those of group b
        assert stage.log == [["gate 1"], ["a1", "a2"]]
        await stage.advance(0.9)
        receipts.append(await inbox.post("b3", group="b"))
        await stage.advance(0.9)
        assert len(stage.log) == 2
        assert await receipts[2].state() is MessageState.WAITING
        await stage.advance(0.2)
        assert stage.log[2:] == [["b1", "b2", "b3"]]
        assert brief(await first.settled()) == ("ran", "answer to gate 1")
        assert [brief(await one.settled()) for one in receipts] == [
            ("ran", "answer to a1"),
            ("merged", "answer to a1"),
            ("ran", "answer to b1"),
            ("merged", "answer to b1"),
            ("merged", "answer to b1"),
        ]
        assert stage.turns[2].ids == [one.id for one in receipts[2:]]


async def test_collected_messages_are_due_at_the_latest_after_max_wait(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=1.0, max_wait=2.0)
        await inbox.post("gate 1")
        await stage.settle()
        await inbox.post("a")
        stage.gate("gate 1").set()
        for text in "bcd":
            await stage.advance(0.7)
            await inbox.post(text)
        assert stage.log[1:] == [["a", "b", "c"]]  # 2.1 s after the first
        await stage.settle()
        assert stage.log[2:] == [["d"]]  # posted when the inbox was idle


async def test_a_collected_message_of_an_idle_inbox_runs_at_once(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=9.0, max_wait=math.inf)
        assert brief(await (await inbox.post("now")).settled()) == ("ran", "answer to now")


async def test_an_interrupt_aborts_the_turn_and_goes_before_all_that_wait(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        first = await inbox.post("gate 1")
        await stage.settle()
        others = [await inbox.post(text) for text in ("f1", "f2", "f3")]
        stop = await inbox.post("gate stop", when_busy=WhenBusy.INTERRUPT, id="stop")
        await stage.settle()
        settled = await first.settled()
        assert settled.kind is SettledKind.CANCELLED
        assert isinstance(settled.error, JobCancelledError)
        assert settled.error.reason == "interrupted by stop"
        assert stage.log == [["gate 1"], "gate 1 is cancelled", ["gate stop"]]
        assert [one.id for one in await inbox.waiting()] == [one.id for one in others]
        again = await inbox.post("again", when_busy=WhenBusy.INTERRUPT)
        assert brief(await again.settled()) == ("ran", "answer to again")
        assert (await stop.settled()).kind is SettledKind.CANCELLED
        for one in others:
            await one.settled()
        assert stage.log[3:] == ["gate stop is cancelled", ["again"], ["f1"], ["f2"], ["f3"]]


async def test_an_interrupt_that_is_posted_again_aborts_nothing(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        stop = await inbox.post("stop", when_busy=WhenBusy.INTERRUPT, id="stop")
        await stop.settled()
        await inbox.post("gate 1")
        await stage.settle()
        again = await inbox.post("stop", when_busy=WhenBusy.INTERRUPT, id="stop")
        assert again.job == stop.job
        await stage.settle()
        assert stage.log == [["stop"], ["gate 1"]]
        stage.gate("gate 1").set()


async def test_a_busy_inbox_rejects_a_message_in_mode_reject(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.REJECT)
        first = await inbox.post("gate 1")
        await stage.settle()
        second = await inbox.post("b")
        assert second.job is None
        assert brief(await second.settled()) == "rejected"
        assert await second.state() is MessageState.SETTLED
        assert await second.position() is None
        assert not await second.cancel()
        assert "refused" in repr(second)
        stage.gate("gate 1").set()
        await first.settled()
        assert brief(await (await inbox.post("c")).settled()) == ("ran", "answer to c")


async def test_a_message_replaces_a_waiting_message_of_mode_replace(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.REPLACE, cap=2)
        await inbox.post("gate 1")
        await stage.settle()
        old = await inbox.post("old")
        other = await inbox.post("f", when_busy=WhenBusy.FOLLOWUP)
        new = await inbox.post("new")
        stage.gate("gate 1").set()
        assert brief(await new.settled()) == ("ran", "answer to new")
        assert brief(await old.settled()) == "replaced"
        assert brief(await other.settled()) == ("ran", "answer to f")
        assert stage.log == [["gate 1"], ["f"], ["new"]]


async def test_a_full_inbox_drops_the_newest_or_the_oldest_message(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        newest = stage.inbox(cap=2, overflow=Overflow.DROP_NEWEST, when_busy=WhenBusy.FOLLOWUP)
        oldest = stage.inbox(cap=2, overflow=Overflow.DROP_OLDEST, when_busy=WhenBusy.FOLLOWUP)
        await newest.post("gate 1")
        await stage.settle()
        receipts = [await newest.post(text) for text in "abc"]
        receipts.append(await oldest.post("d"))
        stage.gate("gate 1").set()
        assert [brief(await one.settled()) for one in receipts] == [
            *("dropped", ("ran", "answer to b"), "dropped"),
            ("ran", "answer to d"),
        ]
        assert stage.log == [["gate 1"], ["b"], ["d"]]


async def test_a_full_inbox_with_interrupts_alone_drops_a_new_message(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(cap=1)
        await stage.lanes.pause("session:alice")
        await inbox.post("stop", when_busy=WhenBusy.INTERRUPT)
        assert brief(await (await inbox.post("b")).settled()) == "dropped"


async def test_a_turn_summarizes_the_oldest_of_too_many_messages(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(cap=2, when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        receipts = [await inbox.post(text, id=text) for text in ("a\nb", "c", "d", "e")]
        stage.gate("gate 1").set()
        assert [brief(await one.settled()) for one in receipts] == [
            ("ran", "answer to a b\nc"),
            "summarized",
            ("merged", "answer to a b\nc"),
            ("ran", "answer to e"),
        ]
        assert stage.log == [["gate 1"], ["a b\nc", "d"], ["e"]]
        assert isinstance(stage.turns[1].messages[0], Summary)
        assert stage.turns[1].ids == ["a\nb", "d"]


async def test_a_second_post_with_an_id_is_the_first_message(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        first = await inbox.post("gate 1", id="m")
        await stage.settle()
        waiting = await inbox.post("b", id="n")
        assert (await inbox.post("gate 1", id="m")).job == first.job
        assert (await inbox.post("other", id="n", when_busy=WhenBusy.REJECT)).job == waiting.job
        stage.gate("gate 1").set()
        await waiting.settled()
        ended = await inbox.post("another", id="m", group="g")
        assert ended.job == first.job
        assert stage.log == [["gate 1"], ["b"]]
        assert first.job is not None
        same = inbox.receipt("m", first.job.id)
        assert brief(await same.settled()) == ("ran", "answer to gate 1")
        # the ids of two sessions are not the same
        bob = DurableInbox(stage.lanes, "session:bob", "answer")
        assert (await bob.post("x", id="m")).job != first.job


async def test_the_next_attempt_has_the_same_messages_and_the_steers_again(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def handler(turn: DurableTurn) -> Any:
        stage.log.append((turn.run.attempt, list(turn.messages), turn.checkpoint_data))
        if turn.messages[0] == "gate 1":
            await stage.gate("gate 1").wait()
        if turn.messages[0] == "a":
            stage.log.append(await turn.take())
            stage.log.append(await turn.take())
            await turn.checkpoint({"step": turn.run.attempt})
            if turn.run.attempt == 1:
                raise ValueError("no")
            return [id for id, _ in turn.steers]
        return None

    stage.handler = handler  # type: ignore[method-assign]
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0)
        await inbox.post("gate 1")
        await stage.settle()
        receipts = [await inbox.post(text) for text in "ab"]
        steer = await inbox.post("s", when_busy=WhenBusy.STEER, id="s")
        stage.gate("gate 1").set()
        assert brief(await receipts[0].settled()) == ("ran", ["s"])
        assert brief(await receipts[1].settled()) == ("merged", ["s"])
        assert brief(await steer.settled()) == "steered"
        assert stage.log[1:] == [
            *((1, ["a", "b"], None), ["s"], []),
            *((2, ["a", "b"], {"step": 1}), ["s"], []),
        ]


async def test_a_turn_that_fails_settles_its_messages_as_failed(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0)
        await inbox.post("gate 1")
        await stage.settle()
        receipts = [await inbox.post(text) for text in ("fail", "b")]
        stage.gate("gate 1").set()
        for one in receipts:
            settled = await one.settled()
            assert settled.kind is SettledKind.FAILED
            assert isinstance(settled.error, JobDeadError)
        assert stage.log == [["gate 1"], ["fail", "b"], ["fail", "b"]]


async def test_a_message_between_two_attempts_is_not_collected_by_another_turn(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    policy = RetryPolicy(max_attempts=2, backoff=(1.0, 1.0), jitter=0.0, order="requeue")
    async with stage.open(retry=policy):
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0, cap=2)
        await inbox.post("gate 1")
        await stage.settle()
        await inbox.post("fail once")
        stage.gate("gate 1").set()
        await stage.settle()
        await inbox.post("b")
        await stage.settle()
        assert stage.log == [["gate 1"], ["fail once"], ["b"]]
        await stage.advance(1.1)
        assert stage.log[3:] == [["fail once"]]


async def test_a_turn_that_its_instance_gave_back_has_no_message_that_came_later(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0)
        await inbox.post("gate 1")
        await stage.settle()
        await inbox.post("gate a")
        stage.gate("gate 1").set()
        await stage.settle()
        await stage.lanes.pause("session:alice")
    assert stage.log == [["gate 1"], ["gate a"], "gate a is cancelled"]
    async with stage.open():
        await stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0).post("b")
        await stage.lanes.resume("session:alice")
        await stage.settle()
        assert stage.log[3:] == [["gate a"]]


async def test_a_message_between_two_attempts_is_not_replaced(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    policy = RetryPolicy(max_attempts=2, backoff=(1.0, 1.0), jitter=0.0)
    async with stage.open(retry=policy):
        inbox = stage.inbox(when_busy=WhenBusy.REPLACE)
        await inbox.post("gate 1")
        await stage.settle()
        old = await inbox.post("fail once", when_busy=WhenBusy.REPLACE)
        stage.gate("gate 1").set()
        await stage.settle()
        new = await inbox.post("new")
        await stage.advance(1.1)
        assert brief(await new.settled()) == ("ran", "answer to new")
        assert brief(await old.settled()) == ("ran", "answer to fail once")


async def test_a_message_that_is_posted_again_after_its_end_replaces_no_other_message(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.REPLACE)
        await inbox.post("gate 0")
        first = await inbox.post("first", id="first")
        stage.gate("gate 0").set()
        await first.settled()
        await inbox.post("gate 1")
        await stage.settle()
        waiting = await inbox.post("waiting")
        assert (await inbox.post("first", id="first")).job == first.job
        stage.gate("gate 1").set()
        assert brief(await waiting.settled()) == ("ran", "answer to waiting")


async def test_a_waiting_message_is_cancelled_by_its_receipt(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        first = await inbox.post("gate 1")
        await stage.settle()
        second = await inbox.post("b")
        assert not await first.cancel()
        assert await second.cancel("not needed")
        assert not await second.cancel()
        settled = await second.settled()
        assert settled.kind is SettledKind.CANCELLED
        assert isinstance(settled.error, JobCancelledError)
        assert settled.error.reason == "not needed"
        stage.gate("gate 1").set()
        await first.settled()
        assert stage.log == [["gate 1"]]


async def test_an_abort_cancels_the_turn_and_the_waiting_messages(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        assert await inbox.abort()
        # so many that the turn has ended before the call has looked at all of them
        receipts = [await inbox.post(text) for text in ("gate 1", *"abcdefghij")]
        await stage.settle()
        assert await inbox.abort("enough")
        for one in receipts:
            settled = await one.settled()
            assert settled.kind is SettledKind.CANCELLED
            assert isinstance(settled.error, JobCancelledError)
            assert settled.error.reason == "enough"
        assert stage.log == [["gate 1"], "gate 1 is cancelled"]
        assert brief(await (await inbox.post("c")).settled()) == ("ran", "answer to c")


@pytest.mark.trio_only("asyncio has no shields")
async def test_an_abort_waits_no_longer_than_its_timeout(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def stubborn(turn: DurableTurn) -> None:
        with trio.CancelScope(shield=True):
            await stage.gate("end").wait()

    stage.handler = stubborn  # type: ignore[method-assign]
    async with stage.open(), trio.open_nursery() as nursery:
        inbox = stage.inbox()
        await inbox.post("a")
        await stage.settle()
        answers: list[bool] = []

        async def abort() -> None:
            answers.append(await inbox.abort(timeout=2.0))

        nursery.start_soon(abort)
        await stage.settle()
        await stage.advance(2.1)
        assert answers == [False]
        stage.gate("end").set()


async def test_a_turn_that_waits_for_a_message_behind_it_gets_a_deadlock_error(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def handler(turn: DurableTurn) -> str:
        if turn.messages == ["a"]:
            behind = await stage.inbox().post("b", when_busy=WhenBusy.FOLLOWUP)
            with pytest.raises(LaneDeadlockError):
                await behind.settled()
            assert await DurableInbox(stage.lanes, "alice", "answer").abort()  # itself, and b
            await trio.sleep_forever()
        return "unreachable"

    stage.handler = handler  # type: ignore[method-assign]
    async with stage.open():
        receipt = await stage.inbox().post("a")
        assert (await receipt.settled()).kind is SettledKind.CANCELLED


async def test_messages_that_do_not_fit_into_one_checkpoint_share_several_turns(
    mock_clock: MockClock,
) -> None:
    stage = DurableStage(MemoryStore(max_payload=700), mock_clock)
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=0.0, cap=math.inf)
        await inbox.post("gate take")
        await stage.settle()
        steers = [await inbox.post(text * 200, when_busy=WhenBusy.STEER) for text in "xyz"]
        receipts = [await inbox.post(text * 200) for text in "abcde"]
        stage.gate("gate take").set()
        kinds = [(await one.settled()).kind.value for one in (*steers, *receipts)]
        assert kinds == ["steered", "ran", "ran", "ran", "merged", "ran", "ran", "merged"]
        assert stage.log[:2] == [["gate take"], ("took", ["x" * 200])]
        handled = [[text[0] for text in turn] for turn in stage.log[2:]]
        assert handled == [["y"], ["z"], ["a", "b"], ["c"], ["d", "e"]]


async def test_a_summary_that_does_not_fit_into_a_checkpoint_is_not_made(
    mock_clock: MockClock,
) -> None:
    stage = DurableStage(MemoryStore(max_payload=600), mock_clock)
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP, cap=1)
        await inbox.post("gate take")
        await stage.settle()
        steer = await inbox.post("s" * 300, when_busy=WhenBusy.STEER)
        receipts = [await inbox.post(text * 200) for text in "abcde"]
        stage.gate("gate take").set()
        kinds = [(await one.settled()).kind.value for one in (steer, *receipts)]
        assert kinds == ["steered", "ran", "ran", "ran", "ran", "merged"]
        # only the last summary, of one message, fits beside the message that it comes with
        assert [[text[0] for text in turn] for turn in stage.log[2:]] == [
            *(["a"], ["b"], ["c"], ["d", "e"]),
        ]
        assert [isinstance(turn.messages[0], Summary) for turn in stage.turns] == [
            *([False] * 4),
            True,
        ]


async def test_an_instance_without_the_handler_posts_and_another_runs_the_turn(
    mock_clock: MockClock,
) -> None:
    store = MemoryStore()
    stage = DurableStage(store, mock_clock)
    async with stage.open(), open_durable_lanes(store.another(), {}, worker=False) as asking:
        inbox = DurableInbox(asking, "alice", "answer")
        receipt = await inbox.post("hello")
        assert brief(await receipt.settled()) == ("ran", "answer to hello")


async def test_a_job_that_is_no_message_fails_and_is_no_part_of_the_inbox(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        strange = await stage.lanes.submit("answer", {"text": "hello"}, session="alice")
        after = await inbox.post("b")
        assert len(await inbox.waiting()) == 1
        stage.gate("gate 1").set()
        with pytest.raises(DurableJobError, match="is no message of a DurableInbox"):
            await strange.wait()
        assert brief(await after.settled()) == ("ran", "answer to b")


async def test_bad_arguments_are_refused_at_the_call(mock_clock: MockClock) -> None:
    stage = DurableStage(MemoryStore(), mock_clock)
    with pytest.raises(TypeError, match="handler must be an async function"):
        inbox_handler(None)  # type: ignore[arg-type]
    async with stage.open() as lanes:
        with pytest.raises(TypeError, match="lanes must be "):
            DurableInbox(None, "alice", "answer")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="session must not be blank"):
            DurableInbox(lanes, " ", "answer")
        with pytest.raises(ValueError, match="handler must not be blank"):
            DurableInbox(lanes, "alice", " ")
        with pytest.raises(TypeError, match="handler must be a string"):
            DurableInbox(lanes, "alice", stage.handler)  # type: ignore[arg-type]
        for bad in ({"cap": 0}, {"debounce": -1.0}, {"max_wait": -1.0}, {"overflow": "all"}):
            with pytest.raises(
                ValueError, match=next(iter(bad)) if "overflow" not in bad else "all"
            ):
                stage.inbox(**bad)
        inbox = stage.inbox()
        with pytest.raises(ValueError, match="'all' is not a valid WhenBusy"):
            await inbox.post("a", when_busy="all")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="id must be a string"):
            await inbox.post("a", id=7)  # type: ignore[arg-type]
        for id in ("", "x" * 201):
            with pytest.raises(ValueError, match="id must have 1 to 200 characters"):
                await inbox.post("a", id=id)
        with pytest.raises(TypeError, match="group must be a string"):
            await inbox.post("a", group=7)  # type: ignore[arg-type]
        with pytest.raises(PayloadError):
            await inbox.post(object())
        assert not await inbox.is_busy()
        assert repr(inbox) == "<trio_lanes.agents.DurableInbox of session 'alice', 'answer'>"
        receipt = await inbox.post("a", id="m")
        await receipt.settled()
        assert receipt.job is not None
        assert repr(receipt) == (
            f"<trio_lanes.agents.DurableReceipt of message 'm', job {receipt.job.id}>"
        )
        assert repr(stage.turns[0]).endswith("attempt 1, 1 messages>")


class Meddling:
    """A store in which something happens between the look at a queue and the next call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.then: Any = None
        self.after_submission: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def look(self, question: Any) -> Any:
        found = await self._store.look(question)
        if isinstance(question, QueueOf):
            then, self.then = self.then, None
            if then is not None:
                await then()
        return found

    async def do(self, act: Any, ticket: str) -> Any:
        answer = await self._store.do(act, ticket)
        if isinstance(act, Enqueue) and self.after_submission is not None:
            then, self.after_submission = self.after_submission, None
            await then()
        return answer


async def test_a_message_that_is_withdrawn_while_a_turn_looks_at_it_is_not_handled(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def handler(turn: DurableTurn) -> None:
        stage.log.append(list(turn.messages))
        if turn.messages == ["gate 1"]:
            await stage.gate("gate 1").wait()
        if turn.messages[0] == "a":
            store.then = receipts["s1"].cancel
            stage.log.append(await turn.take())

    stage.handler = handler  # type: ignore[method-assign]
    async with stage.open():
        inbox = stage.inbox(debounce=0.0)
        first = await inbox.post("gate 1")
        await stage.settle()
        modes = {"a": "collect", "b": "collect", "c": "collect", "s1": "steer", "s2": "steer"}
        receipts = {
            text: await inbox.post(text, when_busy=WhenBusy(mode)) for text, mode in modes.items()
        }
        store.then = receipts["b"].cancel
        stage.gate("gate 1").set()
        kinds = [(await one.settled()).kind.value for one in (first, *receipts.values())]
        assert kinds == ["ran", "ran", "cancelled", "merged", "cancelled", "steered"]
        assert stage.log == [["gate 1"], ["a", "c"], ["s2"]]


async def test_an_interrupt_aborts_no_message_that_goes_to_the_tail_without_a_turn(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]
    policy = RetryPolicy(max_attempts=2, backoff=(1.0, 1.0), jitter=0.0, order="requeue")
    async with stage.open(retry=policy):
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        receipts = [await inbox.post("fail once")]
        await stage.settle()
        await stage.lanes.pause("main")
        receipts.append(await inbox.post("behind"))
        await stage.advance(1.1)  # the first is due, and joins the tail

        async def interrupt() -> None:  # while the run of the other finds out that it is not first
            receipts.append(await inbox.post("stop", when_busy=WhenBusy.INTERRUPT))

        store.then = interrupt
        await stage.lanes.resume("main")
        await stage.settle()
        assert [(await one.settled()).kind.value for one in receipts] == ["ran"] * 3
        assert stage.log == [["fail once"], ["stop"], ["fail once"], ["behind"]]


async def test_messages_beyond_those_that_a_turn_looks_at_wait_for_the_older_ones(
    mock_clock: MockClock,
) -> None:
    stage = DurableStage(MemoryStore(), mock_clock)

    async def handler(turn: DurableTurn) -> None:
        stage.log.append((turn.messages[0][0], turn.run.attempt))
        if turn.messages[0][0] == "a" and turn.run.attempt == 1:
            raise ValueError("to the tail")

    stage.handler = handler  # type: ignore[method-assign]
    async with stage.open(retry=RetryPolicy(backoff=(0.0, 0.0), order="requeue")):
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP, cap=math.inf)
        await stage.lanes.pause("session:alice")
        receipts = [await inbox.post(text * 1_000_000) for text in "abcde"]
        await stage.lanes.resume("session:alice")
        for one in receipts:
            await one.settled()
        assert stage.log == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]


async def test_an_interrupt_behind_many_messages_is_the_next_claim(
    stage: DurableStage, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("inbox", "turn"):  # it is behind those that a look shows
        monkeypatch.setattr(f"trio_lanes.agents._inbox.durable_{module}.MAX_MESSAGES", 5)
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP, cap=math.inf)
        await inbox.post("gate 1")
        await stage.settle()
        others = [await inbox.post(f"f{n}") for n in range(12)]
        for stop in ("gate stop", "gate again"):
            await inbox.post(stop, when_busy=WhenBusy.INTERRUPT, group="g")
            await stage.settle()
        assert stage.log == [
            *(["gate 1"], "gate 1 is cancelled"),
            *(["gate stop"], "gate stop is cancelled"),
            ["gate again"],
        ]
        assert stage.turns[-1].group == "g"
        for one in others:
            assert one.job is not None
            assert (await one.job.status()).history == ()  # no run was wasted on it
        stage.gate("gate again").set()
        await others[-1].settled()
        assert stage.log[5:] == [[f"f{n}"] for n in range(12)]


async def test_an_interrupt_whose_poster_dies_at_once_overtakes_all_the_same(
    stage: DurableStage, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(lanes: DurableLanes, id: int) -> bool:
        raise StoreUnavailableError("the process was killed")

    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        others = [await inbox.post(text) for text in ("f1", "f2", "f3")]
        with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError):
            patch.setattr(DurableLanes, "put_first", dies)
            await inbox.post("stop", when_busy=WhenBusy.INTERRUPT)
        stage.gate("gate 1").set()
        await others[-1].settled()
        assert stage.log == [["gate 1"], ["stop"], ["f1"], ["f2"], ["f3"]]


async def test_an_interrupt_leaves_a_job_that_is_no_message_alone(
    stage: DurableStage, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.agents._inbox.durable_inbox.MAX_MESSAGES", 2)
    go = trio.Event()

    async def other(payload: object) -> None:
        await go.wait()

    handlers = {"answer": inbox_handler(stage.handler), "other": other}
    async with open_durable_lanes(stage.store, handlers, {"main": 4}, grace=0) as stage.lanes:
        job = await stage.lanes.submit("other", session="alice")
        await stage.settle()
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        for text in ("f1", "f2"):
            await inbox.post(text)
        assert await stage.lanes.put_first(job.id) is False
        stop = await inbox.post("stop", when_busy=WhenBusy.INTERRUPT)
        go.set()
        assert await job.wait() is None
        assert brief(await stop.settled()) == ("ran", "answer to stop")


# ---- edits


async def test_a_message_that_waits_is_edited_at_its_place(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open() as lanes:
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP, debounce=0.0)
        first = await inbox.post("gate take")
        await stage.settle()
        modes = {"s": WhenBusy.STEER, "a": WhenBusy.COLLECT, "b": WhenBusy.COLLECT, "c": None}
        receipts = {
            text: await inbox.post(text, when_busy=mode, id=text) for text, mode in modes.items()
        }
        rejected = await inbox.post("no", when_busy=WhenBusy.REJECT)
        assert not await first.edit("x")
        assert not await rejected.edit("x")
        for text in "sba":
            assert await receipts[text].edit(f"{text}2")
        assert await receipts["s"].edit("s3")
        assert [one.id for one in await inbox.waiting()] == ["s", "a", "b", "c"]
        assert await receipts["c"].position() == 3
        with pytest.raises(PayloadError):
            await receipts["c"].edit(object())
        stage.gate("gate take").set()
        settled = {text: brief(await one.settled()) for text, one in receipts.items()}
        assert settled == {
            "s": "steered",
            "a": ("ran", "answer to a2"),
            "b": ("merged", "answer to a2"),
            "c": ("ran", "answer to c"),
        }
        assert stage.log == [["gate take"], ("took", ["s3"]), ["a2", "b2"], ["c"]]
        assert not await receipts["c"].edit("late")
        assert not await inbox.is_busy()
        assert (await lanes.statistics()).waiting == 0


async def test_the_last_message_of_the_queue_is_edited_for_its_own_turn(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        receipt = await inbox.post("b")
        assert await receipt.edit("fail once")
        stage.gate("gate 1").set()
        assert brief(await receipt.settled()) == ("ran", "answer to fail once")
        assert stage.log == [["gate 1"], ["fail once"], ["fail once"]]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("mode", [WhenBusy.STEER, WhenBusy.COLLECT])
async def test_an_edit_while_another_turn_takes_the_message_counts(
    mock_clock: MockClock, mode: WhenBusy, crash: bool
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]
    edited = []

    async def fail() -> None:
        raise ValueError("between the act and the look after it")

    async def edit() -> None:  # between the look at the queue and the act
        edited.append(await receipt.edit("new"))
        if crash:
            store.then = fail

    async def take(turn: DurableTurn) -> Any:
        if mode is WhenBusy.STEER and not edited:
            store.then = edit
        return [*turn.messages, *await turn.take()]

    stage.special["a"] = take
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP, debounce=0.0)
        await inbox.post("gate 1")
        await stage.settle()
        first = await inbox.post("a", when_busy=mode)
        receipt = await inbox.post("b", when_busy=mode)
        if mode is WhenBusy.COLLECT:
            store.then = edit
        stage.gate("gate 1").set()
        assert (await first.settled()).result == ["a", "new"]
        assert edited == [True]


@pytest.mark.trio_only("its store calls what is of this module")
@pytest.mark.parametrize("seen", ["in time", "too late", "cleared", "too late and ended"])
async def test_an_edit_while_the_turn_of_the_message_begins_counts_or_is_refused(
    mock_clock: MockClock, seen: str
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def begin() -> None:
        stage.gate("gate 1").set()
        await stage.settle()

    async def go_on() -> None:
        if seen == "cleared":
            await stage.lanes.clear("session:alice")
        elif seen == "too late and ended":
            stage.gate("gate b").set()
            await stage.settle()

    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        receipt = await inbox.post("gate b")
        if seen == "in time":
            store.after_submission = begin
        else:
            store.then, store.after_submission = begin, go_on
        assert await receipt.edit("gate new") is (seen == "in time")
        for text in ("gate b", "gate new"):
            stage.gate(text).set()
        await receipt.settled()
        assert stage.log == [["gate 1"], ["gate new" if seen == "in time" else "gate b"]]
        await stage.settle()
        assert (await stage.lanes.statistics()).waiting == 0


async def test_an_edit_that_is_withdrawn_while_a_turn_takes_it_has_no_effect(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def edit() -> None:
        await receipt.edit("new")
        store.then = withdraw

    async def withdraw() -> None:
        for job in await stage.lanes.queue("alice"):
            if '"edits"' in job.payload:
                assert await stage.lanes.cancel(job.id)

    async def take(turn: DurableTurn) -> Any:
        store.then = edit
        return await turn.take()

    stage.special["a"] = take
    async with stage.open():
        inbox = stage.inbox()
        await inbox.post("gate 1")
        await stage.settle()
        first = await inbox.post("a", when_busy=WhenBusy.FOLLOWUP)
        receipt = await inbox.post("s")
        stage.gate("gate 1").set()
        assert (await first.settled()).result == ["s"]


@pytest.mark.trio_only("its store calls what is of this module")
async def test_an_edit_whose_editor_died_before_it_knew_counts_in_a_later_attempt(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def begin() -> None:
        stage.gate("gate 1").set()
        await stage.settle()

    async def die() -> None:
        raise StoreUnavailableError("the process was killed")

    async def work(turn: DurableTurn) -> Any:
        await stage.gate("gate work").wait()
        raise ValueError("again")

    stage.special["work"] = work
    async with stage.open() as lanes:
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        receipt = await inbox.post("work")
        store.then, store.after_submission = begin, die
        with pytest.raises(StoreUnavailableError):
            await receipt.edit("new")
        stage.gate("gate work").set()
        assert brief(await receipt.settled()) == ("ran", "answer to new")
        await stage.settle()
        assert (await lanes.statistics()).waiting == 0


async def test_a_late_edit_that_does_not_fit_into_the_checkpoint_is_refused(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore(max_payload=500))
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def edit() -> None:
        await receipt.edit("e" * 200)

    async def take(turn: DurableTurn) -> Any:
        store.then = edit
        return await turn.take()

    stage.special["m" * 200] = take
    async with stage.open():
        inbox = stage.inbox()
        await inbox.post("gate 1")
        await stage.settle()
        first = await inbox.post("m" * 200, when_busy=WhenBusy.FOLLOWUP)
        receipt = await inbox.post("s")
        stage.gate("gate 1").set()
        assert (await first.settled()).result == ["s"]


async def test_an_edit_that_its_message_has_fallen_behind_waits_for_it(
    stage: DurableStage, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.open() as lanes:
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        await inbox.post("gate 1")
        await stage.settle()
        receipt = await inbox.post("b")
        assert await receipt.edit("b2")

        async def nothing(*args: Any, **options: Any) -> bool:
            return False

        with monkeypatch.context() as dies:  # the poster, before it has put the interrupt first
            dies.setattr(DurableLanes, "put_first", nothing)
            dies.setattr(DurableLanes, "cancel", nothing)
            await inbox.post("stop", when_busy=WhenBusy.INTERRUPT)
        stage.gate("gate 1").set()
        assert brief(await receipt.settled()) == ("ran", "answer to b2")
        assert stage.log == [["gate 1"], ["stop"], ["b2"]]
        await stage.settle()
        assert (await lanes.statistics()).waiting == 0


# ---- ROLLBACK


async def test_the_turn_of_a_rollback_knows_which_turn_it_takes_back(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        wrong = await inbox.post("gate wrong", id="wrong")
        await stage.settle()
        waits = await inbox.post("f", id="f")
        right = await inbox.post("gate right", id="right", when_busy=WhenBusy.ROLLBACK)
        await stage.settle()
        assert (await wrong.settled()).kind is SettledKind.CANCELLED
        assert stage.log == [["gate wrong"], "gate wrong is cancelled", ["gate right"]]
        # the turn that is aborted now may not have come to take the first one back
        stop = await inbox.post("gate stop", id="stop", when_busy=WhenBusy.INTERRUPT)
        await stage.settle()
        assert (await right.settled()).kind is SettledKind.CANCELLED
        last = await inbox.post("last", id="last", when_busy=WhenBusy.ROLLBACK)
        assert brief(await last.settled()) == ("ran", "answer to last")
        assert (await stop.settled()).kind is SettledKind.CANCELLED
        assert brief(await waits.settled()) == ("ran", "answer to f")
        assert [(turn.id, turn.rolls_back) for turn in stage.turns] == [
            ("wrong", []),
            ("right", ["wrong"]),
            ("stop", ["wrong"]),
            ("last", ["stop", "wrong"]),
            ("f", []),
        ]


async def test_a_rollback_aborts_a_turn_between_two_attempts_and_no_message_that_waits(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    policy = RetryPolicy(max_attempts=2, backoff=(9.0, 9.0), jitter=0.0)
    async with stage.open(retry=policy):
        inbox = stage.inbox(when_busy=WhenBusy.FOLLOWUP)
        wrong = await inbox.post("fail once", id="wrong")
        await stage.settle()
        waits = await inbox.post("f")
        right = await inbox.post("right", when_busy=WhenBusy.ROLLBACK)
        assert brief(await right.settled()) == ("ran", "answer to right")
        assert (await wrong.settled()).kind is SettledKind.CANCELLED
        assert brief(await waits.settled()) == ("ran", "answer to f")
        assert stage.turns[1].rolls_back == ["wrong"]
        alone = await inbox.post("alone", when_busy=WhenBusy.ROLLBACK)
        assert brief(await alone.settled()) == ("ran", "answer to alone")
        assert stage.turns[-1].rolls_back == []


# ---- what is as in memory


async def test_collected_messages_that_overflow_are_due_though_each_drops_the_oldest(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async with stage.open():
        inbox = stage.inbox(
            when_busy=WhenBusy.COLLECT,
            debounce=1.0,
            max_wait=4.0,
            cap=3,
            overflow=Overflow.DROP_OLDEST,
        )
        for number in range(24):
            await inbox.post(f"m{number}")
            await stage.advance(0.5)
        await stage.advance(10)
    assert len(stage.log) >= 4  # the first at once, then one each four seconds


async def test_a_collected_message_is_due_when_another_kind_comes_behind_it(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def brief_work(turn: DurableTurn) -> None:
        await trio.sleep(0.1)

    stage.special["work"] = brief_work
    async with stage.open():
        inbox = stage.inbox(when_busy=WhenBusy.COLLECT, debounce=50.0, max_wait=500.0)
        await inbox.post("work")
        await stage.settle()
        await inbox.post("b")
        for _ in range(3):
            await stage.advance(1)
        assert stage.log == [["work"]]
        await inbox.post("c", when_busy=WhenBusy.FOLLOWUP)
        for _ in range(3):
            await stage.advance(1)
        assert stage.log == [["work"], ["b"], ["c"]]


@pytest.mark.parametrize("mode", [WhenBusy.REJECT, WhenBusy.FOLLOWUP])
async def test_an_id_is_known_after_the_end_of_its_message_also_to_a_full_or_busy_inbox(
    stage: DurableStage, mock_clock: MockClock, mode: WhenBusy
) -> None:
    async def busy(turn: DurableTurn) -> None:
        await stage.gate("end").wait()

    stage.special["busy"] = busy
    async with stage.open():
        inbox = stage.inbox(cap=1, overflow=Overflow.DROP_NEWEST)
        first = await inbox.post("one", id="m-1")
        assert (await first.settled()).kind is SettledKind.RAN
        await inbox.post("busy")
        await stage.settle()
        await inbox.post("three", when_busy=WhenBusy.FOLLOWUP)
        again = await inbox.post("one", id="m-1", when_busy=mode)
        assert (await again.settled()).result == (await first.settled()).result
        fresh = await inbox.post("new", id="m-4", when_busy=mode)
        assert fresh.job is None
        stage.gate("end").set()
        await stage.settle()


# ---- decisions


async def test_a_turn_asks_for_a_decision_once_and_keeps_it_for_all_attempts(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def refund(turn: DurableTurn) -> Any:
        decision = await turn.approve({"id": "c", "name": "refund"})
        await turn.checkpoint("data")
        stage.log.append((turn.run.attempt, decision.id, decision.kind, decision.value))
        if turn.run.attempt == 1:
            raise ValueError("after the decision")
        return decision.value

    stage.special["refund"] = refund
    async with stage.open() as lanes:
        registry = SharedRunRegistry(lanes)
        receipt = await stage.inbox().post("refund")
        await stage.settle()
        assert await registry.submit("alice", {"c": {"allowed": True}})
        assert brief(await receipt.settled()) == ("ran", {"allowed": True})
        decided = ("c", "result", {"allowed": True})
        assert stage.log == [["refund"], (1, *decided), ["refund"], (2, *decided)]
        assert receipt.job is not None
        events = [event async for _, event in receipt.job.events()]
        assert events == [{"approve": "c", "data": {"id": "c", "name": "refund"}}]
        late = await registry.submit(receipt.job.id, {"c": "no"})
        assert late.reason is SendRefused.NO_ACTIVE_RUN


async def test_a_drain_leaves_a_question_open_and_it_is_not_asked_again(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def refund(turn: DurableTurn) -> Any:
        return (await turn.approve("c", data=turn.messages)).value

    stage.special["refund"] = refund
    async with stage.open():
        receipt = await stage.inbox().post("refund")
        await stage.settle()
        assert await receipt.state() is MessageState.IN_TURN
        await stage.lanes.pause("session:alice")
    async with stage.open() as lanes:
        assert receipt.job is not None
        receipt = stage.inbox().receipt(receipt.id, receipt.job.id)
        refused = await SharedRunRegistry(lanes).submit("alice", {"c": "yes"})
        assert refused.reason is SendRefused.NO_ACTIVE_RUN
        await lanes.resume("session:alice")
        await stage.settle()
        assert await SharedRunRegistry(lanes).submit("alice", {"c": "yes"})
        assert brief(await receipt.settled()) == ("ran", "yes")
        assert receipt.job is not None
        events = [event async for _, event in receipt.job.events()]
        assert events == [{"approve": "c", "data": ["refund"]}]


async def test_a_turn_that_waits_for_a_decision_lends_its_slot_and_others_decide_in_any_order(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def refund(turn: DurableTurn) -> Any:
        found = {}

        async def ask(call: str, seconds: float) -> None:
            decision = await turn.approve(call, timeout=seconds)
            found[call] = decision.kind, decision.value

        async with trio.open_nursery() as nursery:
            for call, seconds in (("a", math.inf), ("b", math.inf), ("late", 5)):
                nursery.start_soon(ask, call, seconds)
        return [found[call] for call in ("a", "b", "late")]

    stage.special["refund"] = refund
    async with stage.open() as lanes:
        await lanes.configure({"main": 1})
        receipt = await stage.inbox().post("refund")
        await stage.settle()
        other = DurableInbox(lanes, "bob", "answer")
        assert brief(await (await other.post("b")).settled()) == ("ran", "answer to b")
        registry = SharedRunRegistry(lanes)
        listed = await registry.questions("alice")
        asked = sorted((one.job, one.call, one.data) for one in listed)
        assert receipt.job is not None
        assert asked == [(receipt.job.id, id, {"id": id}) for id in ("a", "b", "late")]
        # the first decision on a call counts, and only calls that were asked about have one
        unknown = await registry.submit("alice", {"b": 2, "unknown": 3})
        assert unknown.reason is SendRefused.NOT_ASKED
        assert await lanes.send("alice", {"of": "what a user sends", "text": "is no decision"})
        assert await registry.submit("alice", {"b": 2})
        await stage.settle()
        other_one = await registry.submit("alice", {"b": 4, "a": 1})
        assert (other_one.reason, other_one.decided) == (SendRefused.DECIDED, {"b": 2})
        assert await registry.submit("alice", {"b": 2})  # which stands
        assert [one.call for one in await registry.questions()] == ["late"]
        for _ in range(6):
            await stage.advance(1)
        assert brief(await receipt.settled()) == (
            "ran",
            [["result", 1], ["result", 2], ["cancelled", "not decided in 5 s"]],
        )


@pytest.mark.parametrize("where", ["round", "attempt", "data"])
async def test_a_decision_counts_for_the_call_that_was_shown_and_for_no_other_with_its_id(
    stage: DurableStage, mock_clock: MockClock, where: str
) -> None:
    async def work(turn: DurableTurn) -> Any:
        shown = ["read", "delete"] if where == "round" else ["read" if not found else "delete"]
        for what in shown:
            call = {"id": "call_0", "name": "tool" if where == "data" else what}
            decision = await turn.approve(call, data=what if where == "data" else None)
            found.append((decision.id, what, decision.value))
        if turn.run.attempt == 1 and where != "round":
            raise ConnectionError("the model is away")
        return found

    found: list[tuple[str, str, Any]] = []
    stage.special["work"] = work
    async with stage.open() as lanes:
        registry = SharedRunRegistry(lanes)
        receipt = await stage.inbox().post("work")
        await stage.settle()
        assert await registry.submit("alice", {"call_0": "yes"})
        for _ in range(20):
            await stage.advance(1)
        (question,) = await registry.questions("alice")
        assert question.call == "call_0#2"
        again = await registry.submit(question.job, {"call_0": "no"})
        assert (again.reason, again.decided) == (SendRefused.DECIDED, {"call_0": "yes"})
        assert found == [("call_0", "read", "yes")]
        assert await registry.submit(question.job, {question.call: "no"})
        settled = await receipt.settled()
        assert settled.result == [["call_0", "read", "yes"], ["call_0", "delete", "no"]]
        assert await registry.questions() == []
        assert await registry.questions(question.job) == []


async def test_a_decision_of_a_turn_is_none_of_the_next_turn_that_asks_with_its_id(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        return (await turn.approve({"id": "call_0", "name": turn.messages[0]})).value

    stage.special.update(read=work, delete=work)
    async with stage.open() as lanes:
        registry = SharedRunRegistry(lanes)
        first = await stage.inbox().post("read")
        await stage.settle()
        (question,) = await registry.questions("alice")
        assert await registry.submit(question.job, {"call_0": "yes"})
        assert (await first.settled()).result == "yes"
        second = await stage.inbox().post("delete")
        await stage.settle()
        late = await registry.submit(question.job, {"call_0": "yes"})
        assert late.reason is SendRefused.NO_ACTIVE_RUN
        assert await second.state() is MessageState.IN_TURN
        assert await registry.submit("alice", {"call_0": "no"})
        assert (await second.settled()).result == "no"


async def test_a_decision_that_was_taken_before_a_crash_is_that_of_the_next_attempt(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        first = (await turn.approve("a")).value
        if turn.run.attempt == 1:
            raise ConnectionError("the model is away")
        return [first, (await turn.approve("b")).value]

    stage.special["work"] = work
    async with stage.open() as lanes:
        registry = SharedRunRegistry(lanes)
        receipt = await stage.inbox().post("work")
        await stage.settle()
        assert await registry.submit("alice", {"a": 1})
        for _ in range(20):
            await stage.advance(1)
        assert await registry.submit("alice", {"b": 2, "a": 1})
        assert brief(await receipt.settled()) == ("ran", [1, 2])


async def test_two_who_decide_at_once_are_told_which_decision_stands(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        return (await turn.approve("c")).value

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work")
        await stage.settle()
        told: dict[str, Any] = {}

        async def decide(word: str) -> None:
            told[word] = await SharedRunRegistry(lanes).submit("alice", {"c": word})

        async with trio.open_nursery() as nursery:
            for word in ("yes", "no"):
                nursery.start_soon(decide, word)
        result = (await receipt.settled()).result
        (stands,) = [word for word, answer in told.items() if answer]
        assert stands == result
        other = told["no" if stands == "yes" else "yes"]
        assert other.reason in (SendRefused.DECIDED, SendRefused.NO_ACTIVE_RUN)
        if other.reason is SendRefused.DECIDED:
            assert other.decided == {"c": stands}


async def test_a_turn_takes_decisions_of_its_own_process_on_what_it_has_asked_alone(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, turn)
            return (await turn.approve("c")).value

    async def decide(turn: DurableTurn) -> None:
        await stage.settle()
        with pytest.raises(ValueError, match="has not asked about 'd'"):
            turn.submit({"c": 1, "d": 2})
        turn.submit({"c": 3})
        turn.submit({"c": 4})

    stage.special["work"] = work
    async with stage.open():
        receipt = await stage.inbox().post("work")
        assert brief(await receipt.settled()) == ("ran", 3)


async def test_a_turn_of_a_release_before_has_its_questions_and_decisions(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        if turn.run.attempt == 1:
            await turn.run.checkpoint({**turn._kept, "call a": ["result", "yes"], "call b": None})
            raise ConnectionError("a deploy")
        return [(await turn.approve(id)).value for id in ("a", "b")]

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work")
        for _ in range(20):
            await stage.advance(1)
        assert await SharedRunRegistry(lanes).submit("alice", {"b": "no"})
        assert brief(await receipt.settled()) == ("ran", ["yes", "no"])


# ---- a turn as a run


async def test_a_turn_is_a_run_of_both_registries(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    here = RunRegistry()

    async def work(turn: DurableTurn) -> Any:
        with here.running(turn.session, turn):
            async with SharedRunRegistry(stage.lanes).running(turn):
                turn.is_streaming = True
                await stage.gate("gate 1").wait()
                with turn.compacting():
                    assert turn.is_compacting
                    assert await turn.take() == []
                turn.is_streaming = False
                decision = await turn.approve("c")
                return [*await turn.take(), decision.value]

    stage.special["work"] = work
    async with stage.open() as lanes:
        inbox, registry = stage.inbox(), SharedRunRegistry(lanes)
        receipt = await inbox.post("work")
        await stage.settle()
        assert await registry.send("alice", "sent")
        await stage.settle()
        assert here.send("alice", "here")
        await inbox.post("a steer")
        stage.gate("gate 1").set()
        await stage.settle()
        assert here.send("alice", "not now").reason is SendRefused.NOT_STREAMING
        assert await registry.submit("alice", {"c": "yes"})
        assert brief(await receipt.settled()) == ("ran", ["a steer", "sent", "here", "yes"])


async def test_a_question_hears_of_its_decision_when_a_registry_has_left_the_messages(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        async with trio.open_nursery() as nursery:
            async with SharedRunRegistry(stage.lanes).running(turn):
                nursery.start_soon(turn.approve, "c")
                await stage.gate("gate 1").wait()

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work")
        await stage.settle()
        stage.gate("gate 1").set()
        for _ in range(3):
            await stage.advance(1)
        assert await SharedRunRegistry(lanes).submit("alice", {"c": "yes"})
        assert (await receipt.settled()).kind is SettledKind.RAN


async def test_what_is_sent_while_a_turn_asks_is_taken_later_or_gets_a_turn_of_its_own(
    stage: DurableStage, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(turn: DurableTurn) -> Any:
        if turn.run.attempt == 1:
            await turn.approve("c")
        return await turn.take() if turn.messages == ["take"] else None

    stage.special.update(work=work, take=work)
    async with stage.open() as lanes:
        registry = SharedRunRegistry(lanes)
        for first, result in (("take", ["sent"]), ("work", None)):
            receipt = await stage.inbox().post(first)
            await stage.settle()
            behind = await stage.inbox().post("behind", group="g")
            assert await lanes.send("alice", "sent")
            assert await registry.submit("alice", {"c": "yes"})
            assert (await receipt.settled()).result == result
            await behind.settled()
        await stage.settle()
    assert stage.log == [["take"], ["behind"], ["work"], ["behind"], ["sent"]]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.parametrize("how", ["returned", "aborted"])
async def test_what_is_sent_to_a_turn_that_never_takes_messages_gets_a_turn_of_its_own(
    stage: DurableStage, mock_clock: MockClock, how: str
) -> None:
    async def work(turn: DurableTurn) -> Any:
        async with SharedRunRegistry(stage.lanes).running(turn):
            await stage.gate("end").wait()

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work", group="g")
        await stage.settle()
        assert await lanes.send("alice", "sent")
        if how == "aborted":
            assert await SharedRunRegistry(lanes).abort("alice", "enough")
        stage.gate("end").set()
        assert (await receipt.settled()).kind.value == ("ran" if how == "returned" else "cancelled")
        await stage.settle()
    assert stage.log == [["work"], ["sent"]]
    assert stage.turns[1].group == "g"


async def test_what_a_turn_was_sent_and_has_not_taken_is_posted_once_for_all_attempts(
    mock_clock: MockClock,
) -> None:
    store = Meddling(MemoryStore())
    stage = DurableStage(store, mock_clock)  # type: ignore[arg-type]

    async def die() -> None:  # when the first of the two has been posted
        raise ConnectionError("the process was killed")

    async def work(turn: DurableTurn) -> Any:
        async with SharedRunRegistry(stage.lanes).running(turn):
            turn.is_streaming = True
            await stage.gate("end").wait()
            await stage.settle()

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work")
        await stage.settle()
        for _ in range(2):
            assert await SharedRunRegistry(lanes).send("alice", "the same")
        store.after_submission = die
        stage.gate("end").set()
        assert (await receipt.settled()).kind is SettledKind.RAN
        await stage.settle()
    assert stage.log == [["work"], ["work"], ["the same"], ["the same"]]


async def test_what_a_turn_was_sent_before_its_abort_is_handled_if_it_can_be_stored(
    stage: DurableStage, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(turn: DurableTurn) -> Any:
        turn.is_streaming = True
        with here.running(turn.session, turn):
            await trio.sleep_forever()

    here, strange = RunRegistry(), object()
    stage.special["work"] = work
    async with stage.open():
        receipt = await stage.inbox().post("work")
        await stage.settle()
        assert here.send("alice", strange)
        assert here.send("alice", "sent")
        assert here.abort("alice", "enough")
        assert (await receipt.settled()).kind is SettledKind.CANCELLED
        await stage.settle()
    assert stage.log == [["work"], ["sent"]]
    (error,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert error.endswith(f"has not taken is lost: {strange!r}")


@pytest.mark.parametrize("how", ["at once", "after its cancellation", "never"])
async def test_an_abort_by_a_registry_cancels_the_turn_and_its_messages(
    stage: DurableStage, mock_clock: MockClock, how: str
) -> None:
    async def work(turn: DurableTurn) -> Any:
        try:
            await turn.approve("c")
        finally:
            assert turn.abort_called
            assert not turn.queue_message("too late")
            turn.abort("twice")
            if how != "at once":
                with trio.CancelScope(shield=True):
                    await stage.gate("gate end").wait()
            if how == "never":
                return "all the same"  # noqa: B012

    stage.special["work"] = work
    async with stage.open() as lanes:
        receipt = await stage.inbox().post("work")
        await stage.settle()
        assert await SharedRunRegistry(lanes).abort("alice", "enough")
        await stage.settle()
        stage.gate("gate end").set()
        settled = await receipt.settled()
        if how == "never":
            assert brief(settled) == ("ran", "all the same")
        else:
            assert settled.kind is SettledKind.CANCELLED
            assert isinstance(settled.error, JobCancelledError)
            assert settled.error.reason == "enough"


async def test_an_approval_needs_an_id_and_seconds(
    stage: DurableStage, mock_clock: MockClock
) -> None:
    async def work(turn: DurableTurn) -> Any:
        with pytest.raises(TypeError, match="a tool call must have a string for an id"):
            await turn.approve({"name": "refund"})
        with pytest.raises(ValueError, match="timeout must be seconds"):
            await turn.approve("c", timeout=-1)
        with pytest.raises(PayloadError):
            await turn.approve("c", data=object())
        with pytest.raises(PayloadError):
            await turn.approve("c", data="x" * 70_000)  # nothing has been asked
        with pytest.raises(ValueError, match="has not asked about 'c'"):
            turn.submit({"c": 1})
        return "done"

    stage.special["work"] = work
    async with stage.open() as lanes:
        unknown = await SharedRunRegistry(lanes).submit(10**9, {"c": 1})
        assert unknown.reason is SendRefused.NO_ACTIVE_RUN
        assert brief(await (await stage.inbox().post("work")).settled()) == ("ran", "done")


class _Passes(trio.abc.Instrument):
    """Counts the passes of tasks, and cancels a scope after too many."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.scope = trio.CancelScope()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


@pytest.mark.trio_only("it runs Trio")
@pytest.mark.parametrize("begin", [0.1, 0.3, 0.7, 2.9, 6.5, 11.3])
@pytest.mark.parametrize("debounce", [0.02, 0.1, 0.5])
def test_a_collected_message_that_is_due_but_for_a_rounding_error_runs(
    begin: float, debounce: float
) -> None:
    """It was retried after 6e-15 s, for ever: virtual time did not go on."""

    async def handler(turn: DurableTurn) -> None:
        await trio.sleep(0.1)

    async def main() -> None:
        passes = _Passes(5_000)
        trio.lowlevel.add_instrument(passes)
        handlers = {"answer": inbox_handler(handler)}
        with passes.scope:
            async with open_durable_lanes(MemoryStore(), handlers) as lanes:
                inbox = DurableInbox(
                    lanes, "alice", "answer", when_busy=WhenBusy.COLLECT, debounce=debounce
                )
                await trio.sleep(begin)
                await inbox.post("one")
                await trio.sleep(0.09)
                await (await inbox.post("two")).settled()
        assert passes.left > 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
