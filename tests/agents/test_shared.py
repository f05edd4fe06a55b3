"""Runs, locks and transcripts over instances: two instances of one store in one loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.lowlevel
from trio import sleep as sleep_in_trio  # of a store, through both doors
from trio.lowlevel import checkpoint as checkpoint_in_trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.conformance.bench import Played, opening
from trio_lanes import JobCancelledError
from trio_lanes.agents import (
    ActionGate,
    Conversation,
    SendRefused,
    SharedRunRegistry,
    SharedThreadLocks,
    SharedTranscripts,
    TranscriptError,
)
from trio_lanes.durable import (
    DurableLanes,
    LockLostError,
    MemoryStore,
    PayloadError,
    StoreUnavailableError,
    SubmittedJob,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable.acts.logs import WriteLog
from trio_lanes.durable.store import Act

pytestmark = pytest.mark.both_doors

T = TypeVar("T")


class Run:
    """A run that a test plays: it takes messages, gets outputs, and ends at the abort."""

    def __init__(self) -> None:
        self.is_streaming = True
        self.is_compacting = False
        self.takes = True
        self.got: list[Any] = []
        self.ended = trio.Event()

    def queue_message(self, message: Any) -> bool:
        if message == "a mistake":
            raise ZeroDivisionError
        if self.takes:
            self.got.append(message)
        return self.takes

    def abort(self, reason: str | None = None) -> None:
        self.got.append(("abort", reason))
        self.ended.set()


class Stage:
    """Two instances of one store, whose runs register themselves."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.registry: dict[str, SharedRunRegistry] = {}
        self.runs: list[Run] = []
        self.gate: ActionGate | None = None

    @asynccontextmanager
    async def instances(self) -> AsyncIterator[tuple[DurableLanes, DurableLanes]]:
        async def turn(payload: Any) -> Any:
            run = Run()
            self.runs.append(run)
            job = current_job()
            assert job is not None
            registry = self.registry["here"]
            outputs = None if self.gate is None else self.gate.submit
            async with registry.running(run, outputs=outputs):
                await run.ended.wait()
            return [str(one) for one in run.got]

        other = self.store.another()
        async with (
            open_durable_lanes(self.store, {"turn": turn}, grace=0) as here,
            open_durable_lanes(other, {}, grace=0) as elsewhere,
        ):
            self.registry = {
                "here": SharedRunRegistry(here),
                "elsewhere": SharedRunRegistry(elsewhere),
            }
            yield here, elsewhere


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_messages_and_aborts_reach_the_run_from_any_instance(
    autojump_clock: MockClock, stage: Stage, where: str
) -> None:
    async with stage.instances() as (lanes, _):
        registry = stage.registry[where]
        refused = await registry.send("alice", "x")
        assert refused.reason is SendRefused.NO_ACTIVE_RUN
        assert not await registry.abort("alice")
        assert await registry.get("alice") is None
        assert await registry.wait_ended("alice")
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        assert await registry.send("alice", "one", key="k")
        assert await registry.send("alice", "one", key="k")
        assert await registry.send("alice", {"two": 2})
        assert await lanes.send("alice", "three")  # without a registry
        assert await registry.send("alice", "a mistake")
        status = await registry.get("alice")
        assert status is not None
        assert status.id == job.id
        assert not await registry.wait_ended("alice", timeout=1)
        assert await registry.abort_and_wait("alice", "enough")
        result = await job.wait()
        assert result == ["one", "{'two': 2}", "three", "('abort', 'enough')"]
        assert "SharedRunRegistry" in repr(registry)


async def test_a_run_elsewhere_keeps_a_message_until_it_takes_messages(
    autojump_clock: MockClock, stage: Stage
) -> None:
    async with stage.instances() as (lanes, _):
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        (run,) = stage.runs
        for refusal in ("is_streaming", "takes", "is_compacting"):
            value = getattr(run, refusal)
            setattr(run, refusal, not value)
            assert await stage.registry["elsewhere"].send("alice", refusal)
            await trio.sleep(1)
            assert refusal not in run.got
            here = await stage.registry["here"].send("alice", "now")
            if refusal == "takes":
                assert here
            else:
                assert here.reason is not None
                assert here.reason.value == {"is_streaming": "not_streaming"}.get(
                    refusal, "compacting"
                )
            setattr(run, refusal, value)
            await trio.sleep(1)
            assert refusal in run.got
        await stage.registry["elsewhere"].abort("alice")
        await job.wait()


async def test_the_loss_of_a_message_that_a_run_has_never_taken_is_logged(
    autojump_clock: MockClock, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.instances() as (lanes, _):
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        (run,) = stage.runs
        run.takes = False
        assert await stage.registry["elsewhere"].send("alice", "unheard")
        await wait_all_tasks_blocked()
        run.ended.set()
        assert await job.wait() == []
    assert "has not taken the message 'unheard'" in caplog.text


async def test_approvals_reach_the_gate_and_bad_outputs_leave_it_closed(
    autojump_clock: MockClock, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.instances() as (lanes, _):
        stage.gate = ActionGate(["call-1"])
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        registry = stage.registry["elsewhere"]
        assert await registry.submit("alice", {"call-9": "yes"})
        await wait_all_tasks_blocked()
        assert stage.gate.missing == ("call-1",)
        assert "unknown: 'call-9'" in caplog.text
        assert await registry.submit("alice", {"call-1": "yes"}, key="approval")
        assert await registry.submit("alice", {"call-1": "yes"}, key="approval")
        (result,) = await stage.gate.wait()
        assert result.value == "yes"
        await registry.abort("alice")
        await job.wait()
        stage.gate = None
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        assert await registry.submit("alice", {"call-1": "yes"})
        await wait_all_tasks_blocked()
        assert "takes no outputs" in caplog.text
        await registry.abort("alice")
        await job.wait()


@pytest.mark.trio_only("it calls a store, which is Trio's")
async def test_the_sender_learns_that_the_instance_died_and_the_turn_runs_again(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    dead = Played(stage.store.another())
    async with dead.store.open(opening(names=["turn"])):
        await dead.join()
        (id,) = await dead.enqueue([SubmittedJob(name="turn", session="alice")])
        assert len((await dead.step([], 1)).claims) == 1
        async with stage.instances() as (lanes, _):
            sent = await stage.registry["elsewhere"].send("alice", "x")
            assert sent.reason is SendRefused.STOPPED
            while not stage.runs:  # noqa: ASYNC110 - the next heartbeat gives it back
                await trio.sleep(1)
            stage.runs[0].ended.set()
            assert await lanes.job(id).wait() == []
            assert (await lanes.job(id).status()).crashes == 1


async def test_a_store_that_is_away_does_not_end_a_run(
    autojump_clock: MockClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.instances() as (lanes, _):
        receive = stage.store.receive
        away = [True]

        async def sometimes(*arguments: int) -> Any:
            if away:
                away.clear()
                raise StoreUnavailableError("away")
            return await receive(*arguments)

        monkeypatch.setattr(stage.store, "receive", sometimes)
        job = await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        assert await stage.registry["elsewhere"].send("alice", "x")
        await stage.registry["elsewhere"].abort("alice")
        assert await job.wait() == ["x", "('abort', None)"]


async def test_a_job_that_is_cancelled_has_ended(autojump_clock: MockClock, stage: Stage) -> None:
    async with stage.instances() as (lanes, _), trio.open_nursery() as nursery:
        await lanes.submit("turn", session="alice")
        await wait_all_tasks_blocked()
        nursery.start_soon(lanes.abort, "alice")
        assert await stage.registry["elsewhere"].wait_ended("alice")


async def test_a_run_registers_itself_in_a_job_with_a_session_and_fails_as_it_is(
    autojump_clock: MockClock,
    stage: Stage,
) -> None:
    async with stage.instances() as (lanes, _):
        with pytest.raises(RuntimeError, match="handler of a durable job"):
            async with stage.registry["here"].running(Run()):
                pass
        job = await lanes.submit("turn")
        with pytest.raises(Exception, match="handler of a durable job"):
            await job.wait()

        async def fail(payload: Any) -> None:
            async with registry.running(Run()):
                raise ZeroDivisionError("as it is")

        async with open_durable_lanes(stage.store.another(), {"fail": fail}) as failing:
            registry = SharedRunRegistry(failing)
            with pytest.raises(Exception, match="ZeroDivisionError: as it is"):
                await (await failing.submit("fail", session="s")).wait()


# ---- locks and transcripts


async def test_thread_locks_are_shared_and_exclusive_over_instances(
    autojump_clock: MockClock, stage: Stage
) -> None:
    log: list[str] = []

    async def hold(locks: SharedThreadLocks, name: str, mode: str) -> None:
        async with getattr(locks, mode)("t"):
            log.append(name)
            await trio.sleep(1)
            log.append(name)

    async with stage.instances() as (here, elsewhere), trio.open_nursery() as nursery:
        locks = SharedThreadLocks(here), SharedThreadLocks(elsewhere)
        assert "SharedThreadLocks" in repr(locks[0])
        for n, mode in enumerate(("shared", "shared", "exclusive", "shared")):
            nursery.start_soon(hold, locks[n % 2], str(n), mode)
            await wait_all_tasks_blocked()
    assert "".join(log) in ("01012233", "01102233")


async def test_a_thread_goes_over_instances_and_keeps_the_order_of_its_turns(
    autojump_clock: MockClock, stage: Stage
) -> None:
    async with stage.instances() as (here, elsewhere):
        stores = SharedTranscripts(here), SharedTranscripts(elsewhere)
        assert "SharedTranscripts" in repr(stores[0])
        first, second = (Conversation("t", store) for store in stores)
        async with first.turn("one") as turn:
            await turn.append("an")
            async with second.turn("two") as other:
                assert [str(one.content) for one in other.prompt] == ["two"]
                assert [one.status for one in await second.messages()] == [
                    *("completed", "in_progress", "completed", "in_progress")
                ]
                await other.finish("answer two")
            await turn.finish("answer one")
        for conversation in (first, second):
            contents = [one.content for one in await conversation.messages()]
            assert contents == ["one", "answer one", "two", "answer two"]
        async with second.turn("three") as turn:
            assert [one.content for one in turn.history][-1] == "answer two"
        assert list(stores[1].live) == []
        assert len(stores[1].live) == 0
        assert await stores[0].delete("t")
        assert not await stores[0].delete("t")
        assert await Conversation("t", stores[1]).messages() == []


@pytest.mark.trio_only("it calls a store, which is Trio's")
async def test_a_turn_of_a_dead_instance_is_cut_off(
    autojump_clock: MockClock, stage: Stage
) -> None:
    dead = Played(stage.store.another())
    async with dead.store.open(opening()):
        await dead.join()
        record = '[{"turn": "x", "op": "open", "contents": ["q"]}]'
        await dead.do(WriteLog("thread t", record), "a ticket")
        async with stage.instances() as (here, _):
            conversation = Conversation("t", SharedTranscripts(here))
            assert [one.status for one in await conversation.messages()][-1] == "in_progress"
            await trio.sleep(60)
            assert [one.status for one in await conversation.messages()][-1] == "incomplete"
            assert await dead.do(WriteLog("thread t", record), "another") is None


async def test_a_thread_id_and_a_log_that_are_none_are_refused(
    autojump_clock: MockClock, stage: Stage
) -> None:
    async with stage.instances() as (here, _):
        store = SharedTranscripts(here)
        for bad, error in ((3, TypeError), (" ", ValueError), ("x" * 201, ValueError)):
            with pytest.raises(error):
                Conversation(bad, store)  # type: ignore[arg-type]
        await here.log("thread t").append({"no": "commit"})
        with pytest.raises(TranscriptError, match="record 1 is not a list"):
            await Conversation("t", store).messages()


async def test_turns_of_other_instances_are_remembered_up_to_a_number(
    autojump_clock: MockClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.agents._conversations.shared_transcripts.REMEMBERED", 2)
    async with stage.instances() as (here, elsewhere):
        for name in ("a", "b", "c"):
            log = elsewhere.log("thread t")
            await log.append([{"turn": name}, {"copied": "a record without a turn"}])
        store = SharedTranscripts(here)
        await store.load("t")
        assert [name in store.live for name in ("a", "b", "c")] == [False, True, True]


class Slow(MemoryStore):
    """A store whose writes to logs take a second."""

    async def do(self, act: Act[T], ticket: str) -> T:
        if isinstance(act, WriteLog):
            await sleep_in_trio(1)
        return await super().do(act, ticket)


@pytest.mark.parametrize("how", ["drain", "cancelled", "aborted before"])
async def test_a_drain_keeps_the_text_so_far_and_logs_no_error(
    how: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Slow()

    async def answer(question: str) -> None:
        async with Conversation("t", SharedTranscripts(lanes)).turn(question) as turn:
            for word in ("the ", "first ", "half"):
                turn.append(word)
            await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with open_durable_lanes(store, {"answer": answer}, grace=5) as lanes:
            await lanes.submit("answer", "q", session="alice")
            await trio.sleep(2)
            if how == "cancelled":
                scope.cancel()
                await trio.sleep(1)
            elif how == "aborted before":
                await lanes.abort("alice")
                await trio.sleep(0.5)  # its end is being written
                await lanes.drain(grace=0)

    async with open_durable_lanes(store.another(), {}) as lanes:
        messages = await Conversation("t", SharedTranscripts(lanes)).messages()
    assert [(one.content, one.status) for one in messages] == [
        ("q", "completed"),
        ("the first half", "incomplete"),
    ]
    assert [one.message for one in caplog.records if one.levelname != "INFO"] == []


async def test_who_has_no_worker_reads_a_conversation_while_its_turns_run() -> None:
    store = MemoryStore()
    async with (
        open_durable_lanes(store, {}) as lanes,
        open_durable_lanes(store.another(), {}, worker=False) as asking,
    ):
        async with Conversation("t", SharedTranscripts(lanes)).turn("hello") as turn:
            await turn.append("an ans")
            reader = Conversation("t", SharedTranscripts(asking))
            shown = [(m.role, m.content, m.status) for m in await reader.messages()]
            assert shown[0][:2] == ("user", "hello")
            assert shown[1] == ("assistant", "an ans", "in_progress")
            await turn.finish()
        assert [m.content for m in await reader.messages()] == ["hello", "an ans"]


async def test_a_body_that_a_reset_has_abandoned_writes_to_no_log(
    autojump_clock: MockClock,
) -> None:
    begun: list[Any] = []
    refused: list[BaseException] = []

    async def work(payload: Any) -> None:
        begun.append(payload)
        if len(begun) > 1:
            return
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
            try:
                await lanes.log("l").append("late")
            except JobCancelledError as error:
                refused.append(error)
                raise

    async with open_durable_lanes(MemoryStore(), {"work": work}) as lanes:
        await lanes.submit("work")
        await trio.sleep(0.5)
        assert lanes.reset() == 1
        await trio.sleep(2)
        assert len(refused) == 1
        assert await lanes.log("l").read() == []


# ---- logs


class Away(MemoryStore):
    """A store whose writes to logs get no answer, for some times or for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0.0
        self.unknown = True

    async def do(self, act: Act[T], ticket: str) -> T:
        lost = self.lost if isinstance(act, WriteLog) else 0
        if lost and not self.unknown:
            await checkpoint_in_trio()
            raise StoreUnavailableError("away")
        answer = await super().do(act, ticket)
        if lost:
            self.lost -= 1
            error = StoreUnavailableError("the answer was lost")
            error.unknown = True
            raise error
        return answer


async def test_a_record_whose_answer_is_lost_is_written_once(autojump_clock: MockClock) -> None:
    store = Away()
    async with open_durable_lanes(store, {}) as lanes:
        log = lanes.log("l")
        assert "DurableLog 'l'" in repr(log)
        store.lost = 3
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.append, {"a": 1})
                await wait_all_tasks_blocked()
                scope.cancel()  # while it is not known whether the record is there
        assert [(one.number, one.data) for one in await log.read()] == [(1, {"a": 1})]
        store.lost, before = float("inf"), trio.current_time()
        with pytest.raises(StoreUnavailableError) as caught:
            await log.append(2)
        assert caught.value.unknown
        assert 60 <= trio.current_time() - before < 62
        store.unknown = False
        with pytest.raises(StoreUnavailableError) as caught:
            await log.append(3)
        assert not caught.value.unknown
        store.lost = 0
        with pytest.raises(PayloadError):
            await log.append(object())
        assert [one.data for one in await log.read(1)] == [2]


async def test_an_instance_without_a_lease_writes_nothing(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    begun: list[None] = []
    written: list[BaseException] = []

    async def work(payload: Any) -> None:
        begun.append(payload)
        if len(begun) > 1:
            return
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
            try:
                await lanes.log("l").append("late")
            except JobCancelledError as error:
                written.append(error)
                raise

    async with (
        open_durable_lanes(store.another(), {}, worker=False) as asking,
        open_durable_lanes(store, {"work": work}, lease_ttl=30, max_crashes=9) as lanes,
    ):
        with pytest.raises(RuntimeError, match="lease of a worker"):
            await asking.log("l").append(1)
        await lanes.submit("work")
        await wait_all_tasks_blocked()
        store.jump(1000)
        with pytest.raises(LockLostError, match="cannot write to a log"):
            await lanes.log("l").append(1)
        await trio.sleep(150)
        assert len(written) == 1
        assert await asking.log("l").read() == []
