"""One worker: signals at every moment of its life, in this process and in virtual time."""

import faulthandler
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.command import app
from tests.support.programs import PATIENCE
from trio_lanes.command import _children, _worker
from trio_lanes.command._children import Child, ParentConnection
from trio_lanes.command._exits import DONE, NO, CommandError, first_leaf
from trio_lanes.command._worker import WorkerOptions, work
from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    MemoryStore,
    StoreUnavailableError,
    open_durable_lanes,
)

INT, TERM, HUP, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1


class Worker:
    """A worker that runs in this test."""

    def __init__(self) -> None:
        self.lanes: DurableLanes | None = None
        self.opened = trio.Event()
        self.code: int | None = None
        self.after: list[str] = []
        self.opening: Callable[[], Any] = trio.lowlevel.checkpoint
        self.closing: Callable[[], Any] = trio.lowlevel.checkpoint

    @asynccontextmanager
    async def application(self) -> AsyncIterator[DurableLanes]:
        try:
            await self.opening()
            async with open_durable_lanes(MemoryStore(), {"act": app.act}, {"main": 2}) as lanes:
                self.lanes = lanes
                self.opened.set()
                yield lanes
            await self.closing()
            self.after.append("closed")
        finally:
            self.after.append("left")

    async def run(self, options: dict[str, Any]) -> None:
        given: dict[str, Any] = {"grace": 30, "cancel_grace": 5, **options}
        self.code = await work(WorkerOptions(application="tests.command.app:made", **given))

    async def submit(self, what: Any) -> Any:
        await self.opened.wait()
        assert self.lanes is not None
        job = await self.lanes.submit("act", what)
        await wait_all_tasks_blocked()
        return job


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker()
    monkeypatch.setattr(app, "made", worker.application, raising=False)
    return worker


@asynccontextmanager
async def running(worker: Worker, **options: Any) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, options)
        await wait_all_tasks_blocked()
        yield


@pytest.mark.parametrize("signum", [TERM, INT, HUP])
async def test_a_signal_lets_running_jobs_end_and_leaves_waiting_jobs_alone(
    signum: int, worker: Worker, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(worker):
        for _ in range(3):
            await worker.submit(5)
        signal.raise_signal(signum)
    assert worker.code == DONE
    assert trio.current_time() == 5
    assert worker.after == ["closed", "left"]
    assert any("ready: works on" in message for message in caplog.messages)
    assert sum("begins in main" in line for line in caplog.messages) == 2
    assert sum("succeeded after 5.000 s" in line for line in caplog.messages) == 2
    assert caplog.messages[-1] == "all jobs have ended; the worker ends"


async def test_a_second_signal_cancels_running_jobs_and_gives_them_back(
    worker: Worker, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(worker):
        await worker.submit(50)
        signal.raise_signal(TERM)
        await trio.sleep(3)
        signal.raise_signal(TERM)
    assert worker.code == DONE
    assert trio.current_time() == 3
    assert "was given back after 3.000 s" in caplog.text


async def test_what_outlives_the_grace_is_cancelled(
    worker: Worker, autojump_clock: MockClock
) -> None:
    async with running(worker, grace=7):
        await worker.submit(50)
        signal.raise_signal(TERM)
    assert worker.code == DONE
    assert trio.current_time() == 7


async def test_a_body_that_does_not_end_is_waited_for_and_that_is_no_clean_drain(
    worker: Worker, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(worker, grace=7, cancel_grace=2):
        await worker.submit("deaf")
        signal.raise_signal(TERM)
    assert worker.code == NO
    assert trio.current_time() == 3600
    assert "this process waits for them" in caplog.text


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that would end this very process."""
    deaths: list[Any] = []

    class Signals:
        SIG_DFL = "default"

        def signal(self, signum: int, handler: object) -> None:
            deaths.append((handler, signum))

        def raise_signal(self, signum: int) -> None:
            deaths.append(signum)

    monkeypatch.setattr(_worker, "signal", Signals())
    return deaths


async def test_another_signal_ends_a_process_whose_bodies_do_not(
    worker: Worker, autojump_clock: MockClock, deaths: list[Any]
) -> None:
    async with running(worker, grace=1, cancel_grace=1):
        await worker.submit("deaf")
        signal.raise_signal(TERM)
        await trio.sleep(10)
        signal.raise_signal(TERM)
        await wait_all_tasks_blocked()
        assert deaths == [("default", TERM), TERM]
    assert worker.code == NO


async def test_a_signal_before_it_is_ready_ends_it_at_once(
    worker: Worker, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker.opening = trio.sleep_forever
    async with running(worker):
        signal.raise_signal(USR1)  # means nothing yet
        await wait_all_tasks_blocked()
        assert worker.after == []
        signal.raise_signal(INT)
    assert worker.code == DONE
    assert worker.after == ["left"]
    assert caplog.messages == ["a signal ended this process before it was ready"]


async def test_another_signal_ends_a_process_that_ignores_a_signal_before_it_is_ready(
    worker: Worker, autojump_clock: MockClock, deaths: list[Any]
) -> None:
    async def deaf() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(3600)

    worker.opening = deaf
    async with running(worker):
        signal.raise_signal(HUP)
        await trio.sleep(10)
        assert deaths == []
        signal.raise_signal(TERM)
        await wait_all_tasks_blocked()
        assert deaths == [("default", TERM), TERM]


async def test_a_signal_after_the_drain_cuts_the_applications_cleaning_up(
    worker: Worker, autojump_clock: MockClock
) -> None:
    worker.closing = trio.sleep_forever
    async with running(worker):
        await worker.opened.wait()
        signal.raise_signal(TERM)
        await trio.sleep(100)
        assert worker.after == []
        signal.raise_signal(TERM)
    assert worker.code == DONE
    assert worker.after == ["left"]


async def test_sighup_reloads_if_there_is_something_to_reload(
    worker: Worker, autojump_clock: MockClock
) -> None:
    async with running(worker, reload="tests.command.app:limits"):
        signal.raise_signal(HUP)
        await trio.sleep(1)
        assert worker.lanes is not None
        assert (await worker.lanes.statistics()).lanes["main"].concurrency == 7
        signal.raise_signal(TERM)
    assert worker.code == DONE


async def test_sigusr1_gives_up_bodies_that_do_not_end(
    worker: Worker, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(worker):
        job = await worker.submit("deaf")
        signal.raise_signal(USR1)
        await trio.sleep(1)
        assert "reset; 1 running jobs were given up" in caplog.text
        status = await job.status()
        assert (status.state, status.crashes) == (DurableState.RUNNING, 0)  # again
        signal.raise_signal(TERM)
    assert worker.code == NO


async def test_what_sighup_calls_must_be_a_function(worker: Worker) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await worker.run({"reload": "tests.command.app:number"})
    assert "tests.command.app:number must be a function, not 5" in str(first_leaf(caught.value))


async def test_an_exception_of_the_application_is_logged_with_its_traceback(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        raise RuntimeError("no connection")

    worker.opening = fails
    with pytest.raises(ExceptionGroup):
        await worker.run({})
    (record,) = caplog.records
    assert record.getMessage() == "an exception ended the application's lanes"
    assert record.exc_info is not None
    assert "no connection" in caplog.text


# ---- the line to a supervisor


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clocks that would end this process; nothing else of it ends, either."""
    clocks: list[float] = []
    monkeypatch.setattr(_children, "end_by_clock", clocks.append)
    monkeypatch.setattr(_children, "end_listeners", lambda: None)
    monkeypatch.setattr(_children, "LISTENERS_END_AFTER", 0)
    return clocks


async def test_it_says_which_incarnation_it_is_and_when_it_is_ready(
    worker: Worker, clocks: list[float]
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        async with running(worker, line=theirs.detach()):
            await worker.submit("x")
            assert worker.lanes is not None
            (me,) = await worker.lanes.instances()
            assert ours.recv(100).decode() == f"joins {me.id}\nready\n"
            signal.raise_signal(TERM)
    assert worker.code == DONE
    assert not clocks


async def test_when_its_parent_is_gone_its_jobs_are_cancelled_at_once(
    worker: Worker,
    clocks: list[float],
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_children, "LISTENERS_END_AFTER", PATIENCE)
    monkeypatch.setattr(_children, "end_listeners", lambda: pytest.fail("they have ended"))
    ours, theirs = socket.socketpair()
    async with running(worker, line=theirs.detach(), grace=30):
        await worker.submit(5)
        ours.close()
    assert worker.after == ["left"]
    assert trio.current_time() == 0  # without any grace
    assert "the parent of this process has ended" in caplog.text
    (left,) = clocks
    assert 20 < left < 0.95 * 30  # the lease


async def test_a_process_that_still_runs_soon_after_its_parents_end_listens_no_more(
    clocks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    listens_no_more = trio.Event()
    token = trio.lowlevel.current_trio_token()
    tell = partial(token.run_sync_soon, listens_no_more.set)
    monkeypatch.setattr(_children, "end_listeners", tell)
    ours, theirs = socket.socketpair()
    with ParentConnection(theirs.detach()).heard(lambda _: None, lambda: None, lambda: 7.0):
        ours.close()
        await listens_no_more.wait()
    assert clocks == [7]


async def test_a_line_that_is_cut_before_it_is_ready_ends_it_too(
    worker: Worker, clocks: list[float]
) -> None:
    ours, theirs = socket.socketpair()
    theirs.send(b"x")  # unread, so that the cut is a reset
    ours.close()
    worker.opening = trio.sleep_forever
    async with running(worker, line=theirs.detach()):
        pass
    assert worker.after == ["left"]
    assert clocks == [pytest.approx(_worker.ENDS_WITHIN)]  # there is no lease


async def test_the_end_of_the_parent_is_nothing_to_a_process_that_ends_already(
    worker: Worker, clocks: list[float]
) -> None:
    ours, theirs = socket.socketpair()
    async with running(worker, line=theirs.detach()):
        await worker.opened.wait()
        signal.raise_signal(TERM)
    ours.close()
    assert worker.code == DONE
    assert not clocks


def test_the_clock_ends_a_process_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def later(seconds: float, **options: Any) -> None:
        asked.append((seconds, options))

    monkeypatch.setattr(faulthandler, "dump_traceback_later", later)
    _children.end_by_clock(7)
    _children.end_by_clock(-1)  # the lease is over already
    options = {"exit": True, "file": 2}
    assert asked == [(7, options), (0.001, options)]


async def test_a_store_of_one_process_is_refused_under_a_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TEST_JOBS", str(tmp_path / "jobs.db"))
    ours, theirs = socket.socketpair()
    options = WorkerOptions(
        application="tests.command.app:sqlite", grace=1, cancel_grace=1, line=theirs.detach()
    )
    with ours, pytest.raises(ExceptionGroup) as caught:
        await work(options)
    error = first_leaf(caught.value)
    assert isinstance(error, CommandError)
    assert "takes one worker: leave --processes out" in str(error)


async def test_what_a_handler_starts_does_not_hold_the_line(worker: Worker) -> None:
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()
    os.set_inheritable(descriptor, True)
    with ours:
        async with running(worker, line=descriptor):
            await worker.opened.wait()
            assert not os.get_inheritable(descriptor)
            signal.raise_signal(TERM)


async def test_it_may_say_so_to_a_parent_that_is_gone(clocks: list[float]) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    line = ParentConnection(theirs.detach())
    line.say_ready()
    line.say_joins("me")
    with line.heard(print, print, lambda: 30.0):
        await wait_all_tasks_blocked()


async def test_a_parent_hears_its_child_to_the_last_word() -> None:
    ours, theirs = socket.socketpair()
    process = await trio.lowlevel.open_process(["true"])
    child = Child(process, ours)
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.hear, ready.set)
        for part in (b"joi", b"ns one\nrea", b"dy\njoins two\njoi"):  # it may be cut anywhere
            theirs.send(part)
            await wait_all_tasks_blocked()
        assert ready.is_set()
        nursery.cancel_scope.cancel()
    theirs.send(b"ns three\n")
    child.hear_rest()
    child.hear_rest()
    assert [*child.instances] == ["one", "two", "three"]
    theirs.close()
    await child.hear(ready.set)
    child.hear_rest()
    await child.aclose()
    await child.wait()


async def test_a_parent_reports_ends_to_a_child_that_may_have_ended() -> None:
    ours, theirs = socket.socketpair()
    process = await trio.lowlevel.open_process(["true"])
    child = Child(process, ours)
    await child.report_end("one")
    await child.report_end("two")
    assert theirs.recv(100) == b"one\ntwo\n"
    theirs.send(b"unread, so that the cut is a reset")
    theirs.close()
    await child.report_end("one")
    await child.hear(bool)
    await child.aclose()
    await child.report_end("one")
    await child.wait()


async def test_what_an_incarnation_ran_is_given_back_when_the_parent_reports_its_end(
    worker: Worker,
    clocks: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    buried: list[str] = []
    all_are = trio.Event()

    async def declare_dead(store: MemoryStore, instance: str) -> None:
        await trio.lowlevel.checkpoint()
        buried.append(instance)
        if len(buried) == 3:
            all_are.set()
        if instance == "two":
            raise StoreUnavailableError("no connection")

    monkeypatch.setattr(MemoryStore, "declare_dead", declare_dead)
    ours, theirs = socket.socketpair()
    with ours:
        async with running(worker, line=theirs.detach()):
            await worker.opened.wait()
            for part in (b"on", b"e\ntwo\nthree\n"):  # the stream may cut them anywhere
                ours.send(part)
            await all_are.wait()
            assert buried == ["one", "two", "three"]
            signal.raise_signal(TERM)
    assert "the jobs of instance two, which has ended, could not be given back" in caplog.text
    assert not clocks


async def test_what_listens_still_is_ended_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    one, other = socket.socketpair()
    with one, other, socket.create_server(("127.0.0.1", 0)) as tcp, (tmp_path / "x").open("w") as x:
        sockets = [tcp, one, x]
        names = [*(str(one.fileno()) for one in sockets), "1000000"]
        monkeypatch.setattr(os, "listdir", lambda path: names)
        _children.end_listeners()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(tcp.getsockname())
        one.send(b"x")
        assert other.recv(1) == b"x"
        x.write("x")
