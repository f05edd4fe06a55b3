"""The supervisor of worker processes, over children that only pretend, in virtual time."""

import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.command._children import Child
from trio_lanes.command._exits import (
    DONE,
    NO,
    STORE_LOCKED,
    STORE_UNAVAILABLE,
    STORE_UNUSABLE,
    USAGE,
)
from trio_lanes.command._supervisor import Supervisor, signal_name

HUP, INT, TERM, KILL, USR1 = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGKILL,
    signal.SIGUSR1,
)


class FakeChild(Child):
    """Works at once, and ends when it is forwarded to; unless it does not."""

    def __init__(self, pid: int, *, works: bool, obeys: tuple[int, ...]) -> None:
        self.pid = pid
        self.works = trio.Event()
        if works:
            self.works.set()
        self.obeys = obeys
        self.signals: list[tuple[float, int]] = []
        self.reports: list[str] = []
        self.instances = deque([f"instance {pid}"])
        self.code: int | None = None
        self.over = trio.Event()
        self.closed = False

    async def hear(self, ready: Callable[[], object]) -> None:
        await self.works.wait()
        ready()
        await trio.sleep_forever()

    def hear_rest(self) -> None:
        self.instances.append(f"last of {self.pid}")

    async def wait(self) -> int:
        await self.over.wait()
        assert self.code is not None
        return self.code

    def send_signal(self, signum: int) -> None:
        self.signals.append((trio.current_time(), signum))
        if signum == KILL:
            self.end(-KILL)
        elif signum in self.obeys:
            self.end(0 if self.works.is_set() else -signum)

    async def report_end(self, instance: str) -> None:
        self.reports.append(instance)
        await trio.lowlevel.checkpoint()

    def end(self, code: int) -> None:
        self.code = code
        self.over.set()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


class Play:
    """A supervisor, its children, and the signals that it gets."""

    def __init__(self, supervised: "Callable[[Play], Supervisor]") -> None:
        self.children: list[FakeChild] = []
        self.began: list[float] = []
        self.works = True
        self.obeys: tuple[int, ...] = (TERM, INT, HUP)
        self.errors: list[OSError] = []
        self.may_start = trio.Event()
        self.may_start.set()
        self.send, self._signals = trio.open_memory_channel[int](10)
        self._supervisor = supervised(self)
        self.code: int | None = None

    async def start(self) -> Child:
        self.began.append(trio.current_time())
        await self.may_start.wait()
        if self.errors:
            raise self.errors.pop()
        child = FakeChild(1000 + len(self.children), works=self.works, obeys=self.obeys)
        self.children.append(child)
        return child

    async def run(self) -> None:
        self.code = await self._supervisor.run(self._signals)

    def signals(self) -> list[list[int]]:
        return [[signum for _, signum in child.signals] for child in self.children]


@asynccontextmanager
async def playing(processes: int = 3, *, reloads: bool = False) -> AsyncIterator[Play]:
    forwarded = {USR1, HUP} if reloads else {USR1}
    play = Play(
        lambda play: Supervisor(play.start, processes, grace=30, kill_after=10, forwarded=forwarded)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(play.run)
        yield play


@pytest.mark.parametrize("signum", [TERM, INT, HUP])
async def test_a_signal_is_passed_on_and_a_drain_in_order_is_0(
    signum: int, mock_clock: MockClock
) -> None:
    async with playing() as play:
        await wait_all_tasks_blocked()
        assert len(play.children) == 3
        await play.send.send(signum)
    assert play.code == DONE
    assert play.signals() == [[signum]] * 3
    assert all(child.closed for child in play.children)


async def test_the_first_one_is_started_alone_and_the_others_when_it_works(
    mock_clock: MockClock,
) -> None:
    async with playing() as play:
        play.works = False
        await wait_all_tasks_blocked()
        (first,) = play.children
        play.works = True
        first.works.set()
        await wait_all_tasks_blocked()
        assert len(play.children) == 3
        await play.send.send(TERM)


@pytest.mark.parametrize("code", [USAGE, STORE_UNUSABLE, STORE_LOCKED])
async def test_what_no_other_would_do_better_ends_it_all_with_that_code(
    code: int, mock_clock: MockClock
) -> None:
    async with playing() as play:
        play.works = False
        await wait_all_tasks_blocked()
        play.children[0].end(code)
    assert play.code == code
    assert len(play.children) == 1


async def test_that_is_so_only_until_one_has_worked(autojump_clock: MockClock) -> None:
    async with playing(1) as play:
        await wait_all_tasks_blocked()
        play.works = False
        play.children[0].end(-KILL)
        await trio.sleep(0.6)
        play.children[1].end(USAGE)
        play.works = True
        await trio.sleep(1.1)
        assert len(play.children) == 3
        await play.send.send(TERM)
    assert play.code == DONE


async def test_a_child_that_ends_is_started_again_later_and_later(
    autojump_clock: MockClock,
) -> None:
    async with playing(1) as play:
        for number, pause in enumerate([0.5, 1, 2, 4, 8, 16, 30, 30], 1):
            await wait_all_tasks_blocked()
            assert len(play.children) == number
            play.children[-1].end(STORE_UNAVAILABLE if number % 2 else 0)
            await trio.sleep(pause - 0.1)
            assert len(play.children) == number
            await trio.sleep(0.2)
        await trio.sleep(61)  # it has lasted
        play.children[-1].end(-KILL)
        await trio.sleep(0.6)
        assert len(play.children) == 10
        await play.send.send(TERM)
    assert play.code == DONE


async def test_one_that_cannot_be_started_is_tried_again(autojump_clock: MockClock) -> None:
    async with playing(1) as play:
        play.errors.append(OSError("no more processes"))
        await trio.sleep(1)
        assert play.began == [0, 0.5]
        await play.send.send(TERM)
    assert play.code == DONE


async def test_a_signal_ends_a_back_off_too(autojump_clock: MockClock) -> None:
    async with playing(1) as play:
        await wait_all_tasks_blocked()
        play.children[0].end(70)
        await wait_all_tasks_blocked()
        await play.send.send(TERM)
    assert trio.current_time() == 0
    assert play.code == DONE
    assert len(play.children) == 1


async def test_who_does_not_end_is_terminated_after_the_grace_and_then_killed(
    autojump_clock: MockClock,
) -> None:
    async with playing(2) as play:
        await wait_all_tasks_blocked()
        deaf, slow = play.children
        deaf.obeys, slow.obeys = (), (TERM,)
        await play.send.send(INT)
    assert deaf.signals == [(0, INT), (30, TERM), (40, KILL)]
    assert slow.signals == [(0, INT), (30, TERM)]
    assert play.code == NO


async def test_the_end_of_a_child_is_reported_to_one_that_is_ready(
    autojump_clock: MockClock,
) -> None:
    async with playing(3) as play:
        await wait_all_tasks_blocked()
        for child in play.children[:2]:
            child.end(-KILL)
        await wait_all_tasks_blocked()
        ended = ["instance 1000", "instance 1001", "last of 1000", "last of 1001"]
        assert sorted(play.children[2].reports) == ended
        play.works = False
        play.children[2].end(-KILL)
        await trio.sleep(0.6)
        assert [child.reports for child in play.children[3:]] == [[]] * 3
        play.children[4].works.set()
        await wait_all_tasks_blocked()
        assert sorted(play.children[4].reports) == ["instance 1002", "last of 1002"]
        await play.send.send(TERM)


async def test_the_end_of_a_child_that_has_left_the_store_is_not_reported(
    autojump_clock: MockClock,
) -> None:
    async with playing(2) as play:
        await wait_all_tasks_blocked()
        first, second = play.children
        first.end(DONE)
        await wait_all_tasks_blocked()
        assert second.reports == []
        await play.send.send(TERM)


async def test_a_second_signal_is_passed_on_and_shortens_the_grace(
    autojump_clock: MockClock,
) -> None:
    async with playing(1) as play:
        await wait_all_tasks_blocked()
        (child,) = play.children
        child.obeys = ()
        await play.send.send(TERM)
        await trio.sleep(3)
        await play.send.send(TERM)
    assert child.signals == [(0, TERM), (3, TERM), (13, KILL)]


async def test_a_child_that_fails_while_it_ends_is_not_in_order(mock_clock: MockClock) -> None:
    async with playing(2) as play:
        await wait_all_tasks_blocked()
        play.children[0].obeys = ()
        await play.send.send(TERM)
        await wait_all_tasks_blocked()
        play.children[0].end(70)
    assert play.code == NO


@pytest.mark.parametrize("signum", [USR1, HUP])
async def test_a_signal_that_ends_nothing_is_forwarded_to_ready_workers(
    signum: int, mock_clock: MockClock
) -> None:
    async with playing(2, reloads=True) as play:
        await wait_all_tasks_blocked()
        for child in play.children:
            child.obeys = (TERM,)
        await play.send.send(signum)
        await wait_all_tasks_blocked()
        await play.send.send(TERM)
    assert play.code == DONE
    assert play.signals() == [[signum, TERM]] * 2


async def test_one_that_does_not_work_yet_is_spared_signals_it_may_not_know(
    mock_clock: MockClock,
) -> None:
    async with playing(1, reloads=True) as play:
        play.works = False
        await wait_all_tasks_blocked()
        await play.send.send(HUP)
        await wait_all_tasks_blocked()
        await play.send.send(INT)
    assert play.signals() == [[TERM]]
    assert play.code == DONE


async def test_a_signal_also_reaches_a_worker_that_is_just_being_started(
    mock_clock: MockClock,
) -> None:
    async with playing(1) as play:
        play.may_start = trio.Event()
        await wait_all_tasks_blocked()
        await play.send.send(INT)
        await wait_all_tasks_blocked()
        play.may_start.set()
    assert play.code == DONE
    assert play.signals() == [[TERM]]


async def test_each_event_is_a_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes.command")
    async with playing(1) as play:
        await wait_all_tasks_blocked()
        play.children[0].end(-KILL)
        await trio.sleep(1)
        await play.send.send(TERM)
    assert [record.getMessage() for record in caplog.records] == [
        "process 1 started, pid 1000",
        "process 1 is ready",
        "process 1, pid 1000, was ended by SIGKILL",
        "process 1 is restarted in 0.5 s",
        "process 1 started, pid 1001",
        "process 1 is ready",
        "SIGTERM is forwarded to the processes",
        "process 1, pid 1001, ended with exit code 0",
        "all processes have ended",
    ]


def test_signals_without_a_name_have_a_number() -> None:
    assert signal_name(TERM) == "SIGTERM"
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"
