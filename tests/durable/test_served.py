"""A SQLite file that one process owns, and whose calls come from several."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from outcome import Value
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.cancelled import cancel_open
from tests.durable.conformance.bench import new_job
from tests.durable.conformance.suite import durable_store_suite, play
from tests.support.programs import PATIENCE
from trio_lanes import LaneClearedError, UnknownLaneError
from trio_lanes.durable import (
    Claim,
    DurableLanes,
    DurableState,
    Ended,
    MemoryStore,
    PayloadError,
    SqliteStore,
    Step,
    Store,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
    Submission,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._contract.act import NO_LOOKUPS, Lookups
from trio_lanes.durable._sql import act_thread
from trio_lanes.durable._sqlite.guest import SqliteHost, host
from trio_lanes.durable._wire import server
from trio_lanes.durable._wire.client import RECONNECT_AFTER, ServedStoreClient
from trio_lanes.durable._wire.codec import decode, encode
from trio_lanes.durable._wire.mail import BATCH_SIZE, Mail
from trio_lanes.durable._wire.server import WAITS, serve
from trio_lanes.durable._wire.sockets import SocketLink, connect_unix, serve_unix
from trio_lanes.durable.acts.inspection import AllLanes, Check
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.logs import DropLog
from trio_lanes.durable.acts.orders import Clear


class Served:
    """The hosts of the files of a test, each started at its first use and ended with the run."""

    def __init__(self) -> None:
        self.folders: dict[Path, trio.Event] = {}

    def __call__(self, folder: Path) -> ServedStoreClient:
        @asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            if folder not in self.folders:
                self.folders[folder] = trio.Event()
                trio.lowlevel.spawn_system_task(self.host, folder)
            await self.folders[folder].wait()
            async with connect_unix(f"{folder}/served") as link:
                yield link

        return ServedStoreClient(connect, name="the served file")

    async def host(self, folder: Path) -> None:
        try:
            file = SqliteStore(folder / "jobs.db", synchronous="NORMAL", patience=PATIENCE)
            async with host(file) as owner:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serve_unix, f"{folder}/served", owner.guest)
                    self.folders[folder].set()
        except trio.Cancelled:  # the run ends
            pass


class InMemory:
    """A store in memory that is served over channels, which take no time."""

    def __init__(self) -> None:
        self.first: dict[Path, MemoryStore] = {}

    def __call__(self, folder: Path) -> ServedStoreClient:
        store = self.first.setdefault(folder, MemoryStore())

        @asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            there, here = trio.open_memory_channel[str](1000), trio.open_memory_channel[str](1000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, Ends(here[0], there[1]), store.another())
                yield Ends(there[0], here[1])
                nursery.cancel_scope.cancel()

        # a jump of the clock of a test must not end the patience of a call
        return ServedStoreClient(connect, name="the served memory", patience=2880)


@attrs.frozen
class Ends:
    sends: trio.MemorySendChannel[str]
    receives: trio.MemoryReceiveChannel[str]

    async def send(self, message: str) -> None:
        await self.sends.send(message)

    async def receive(self) -> str:
        return await self.receives.receive()


class Guests:
    """Guests of one host for each folder, which is opened at its first use; they share a cache."""

    def __init__(self) -> None:
        self.hosts: dict[Path, tuple[SqliteStore, trio.Event]] = {}

    def __call__(self, folder: Path) -> Store:
        if folder not in self.hosts:
            file = SqliteStore(folder / "jobs.db", synchronous="NORMAL", patience=PATIENCE)
            self.hosts[folder] = file, trio.Event()
        guest: Any = LateGuest(*self.hosts[folder])
        return cast("Store", guest)


class LateGuest:
    """A guest of a host that may not be open yet."""

    def __init__(self, file: SqliteStore, opened: trio.Event) -> None:
        self.file, self.opened, self.guest = file, opened, SqliteHost(file).guest()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.guest, name)

    @asynccontextmanager
    async def open(self, opening: Any) -> AsyncIterator[None]:
        if self.file._writer is None:
            trio.lowlevel.spawn_system_task(self.host)
        await self.opened.wait()
        async with self.guest.open(opening):
            yield

    async def host(self) -> None:
        try:
            async with host(self.file):
                self.opened.set()
                await trio.sleep_forever()
        except trio.Cancelled:  # the run ends
            pass


TestGuests = durable_store_suite(Guests(), clock=MockClock)
# the same rules, over a wire
TestServedMemory = pytest.mark.thorough(durable_store_suite(InMemory(), clock=MockClock))

if os.environ.get("TRIO_LANES_LONG_TESTS"):
    TestServedSqlite = durable_store_suite(Served())


@pytest.mark.parametrize(
    "name",
    [
        "test_a_message_is_taken_by_the_run_of_a_session_on_any_instance",
        "test_a_sender_knows_that_its_message_was_taken_while_the_run_goes_on",
        "test_events_reach_readers_on_any_instance_until_the_job_has_ended",
        "test_leaving_gives_running_jobs_back_and_counts_as_nothing",
        "test_requeue_and_purge_with_the_same_ticket_are_done_once",
        "test_what_a_process_ran_is_given_back_at_once_when_its_end_is_reported",
    ],
)
def test_the_suite_also_runs_over_a_wire(name: str) -> None:
    assert play(name, InMemory(), clock=MockClock) == []


@pytest.mark.parametrize(
    "name",
    [
        "test_a_step_asked_again_gives_the_same_claims_and_does_nothing_more",
        "test_clear_takes_jobs_that_have_not_started_and_leaves_those_that_run",
        "test_every_heartbeat_gives_back_the_runs_of_dead_instances",
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
    ],
)
def test_the_suite_also_runs_over_a_served_file(name: str) -> None:
    # in real time, since sockets and threads take some
    assert play(name, Served()) == []


async def echo(payload: Any) -> Any:
    return payload


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[SqliteHost]:
    async with host(SqliteStore(tmp_path / "jobs.db", synchronous="NORMAL")) as owner:
        yield owner


async def test_two_workers_share_the_limits_and_the_sessions_of_one_file(
    owner: SqliteHost,
) -> None:
    most = now = 0

    async def count(payload: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.sleep(0.001)
        now -= 1
        return payload

    handlers = {"count": count}
    async with (
        open_durable_lanes(owner.guest(), handlers, {"main": 3}) as one,
        open_durable_lanes(owner.guest(), handlers, {"main": 3}) as two,
    ):
        jobs = [
            await lanes.submit("count", n, session=f"{n % 5}")
            for n in range(20)
            for lanes in (one, two)
        ]
        assert [await two.job(job.id).wait() for job in jobs] == sorted([*range(20)] * 2)
        assert len(await one.instances()) == 2
        assert (await one.check()).problems == ()
    assert 1 <= most <= 3


async def test_what_another_process_submits_is_seen_by_the_workers(
    owner: SqliteHost, tmp_path: Path
) -> None:
    async with open_durable_lanes(owner.guest(), {"echo": echo}):
        async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {}, worker=False) as ask:
            assert await (await ask.submit("echo", 7)).wait() == 7


async def test_a_file_that_is_served_takes_no_other_worker(
    owner: SqliteHost, tmp_path: Path
) -> None:
    with pytest.raises(StoreLockedError):
        async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {"echo": echo}):
            raise AssertionError


async def test_what_a_dead_process_ran_is_given_back_at_once(owner: SqliteHost) -> None:
    guest = owner.guest()
    began, forever = trio.Event(), trio.Event()

    async def hangs(payload: Any) -> str:
        if not began.is_set():
            began.set()
            await forever.wait()
        return "done"

    handlers = {"hangs": hangs}
    with trio.CancelScope() as dead:
        async with open_durable_lanes(guest, handlers) as lanes:
            job = await lanes.submit("hangs")
            await began.wait()
            (info,) = await lanes.instances()
            await guest.declare_dead("another")
            assert len(await lanes.instances()) == 1
            await guest.declare_dead(info.id)
            assert await lanes.instances() == []
            assert (await job.status()).crashes == 1
            dead.cancel()
    async with open_durable_lanes(owner.guest(), handlers) as lanes:
        assert await lanes.job(job.id).wait() == "done"


async def test_a_guest_that_is_not_open_is_not_available(owner: SqliteHost) -> None:
    with pytest.raises(StoreUnavailableError, match="not open"):
        await owner.guest().beat()


async def test_the_instances_of_an_earlier_host_are_dead(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with trio.CancelScope() as dead:
        async with host(SqliteStore(path)) as owner:
            guest = owner.guest()
            async with open_durable_lanes(owner.guest(), {}, worker=False) as lanes:
                job = await lanes.submit("echo", 1)
            async with guest.open(_opening()):
                await guest.join("me")
                assert (await guest.step(1, [], 1)).claims
                dead.cancel()
                await trio.lowlevel.checkpoint()
    async with host(SqliteStore(path)) as owner:
        async with open_durable_lanes(owner.guest(), {"echo": echo}) as lanes:
            assert await lanes.job(job.id).wait() == 1
            assert (await lanes.job(job.id).status()).crashes == 1


@asynccontextmanager
async def one_transaction(owner: SqliteHost) -> AsyncIterator[trio.Nursery]:
    """Let all that the tasks of the block ask for be one transaction."""
    waits, goes_on = threading.Event(), threading.Event()

    def hold(engine: object) -> None:
        waits.set()
        goes_on.wait(PATIENCE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.store._transact, hold)
        await trio.to_thread.run_sync(waits.wait, PATIENCE)
        yield nursery
        await wait_all_tasks_blocked()
        goes_on.set()


@pytest.mark.parametrize(
    ("jobs", "steps", "woken"), [(1, 1, [False, False]), (2, 1, [False, True]), (1, 0, [True] * 2)]
)
async def test_a_job_is_claimed_as_it_is_accepted_and_others_are_woken_for_what_is_left(
    owner: SqliteHost, jobs: int, steps: int, woken: list[bool], mock_clock: MockClock
) -> None:
    guests, claims = [owner.guest(), owner.guest()], list[Claim]()

    async def step() -> None:
        claims.extend((await guests[0].step(1, [], 1)).claims)

    async with guests[0].open(_opening()), guests[1].open(_opening()):
        for number, guest in enumerate(guests):
            await guest.join(f"{number}")
        await owner.store._transact(lambda engine: None)
        for guest in guests:
            guest._wake_ups.pending = False
        async with one_transaction(owner) as nursery:
            for _ in range(steps):
                nursery.start_soon(step)
            await wait_all_tasks_blocked()
            for number in range(jobs):
                nursery.start_soon(guests[0].do, Enqueue([new_job()]), f"job {number}")
        assert len(claims) == steps
        assert [guest._wake_ups.pending for guest in guests] == woken


async def test_a_claim_that_is_done_after_later_acts_has_no_earlier_time(
    owner: SqliteHost, mock_clock: MockClock
) -> None:
    times: list[float] = []

    async def note(lookups: Lookups) -> None:
        await owner.store._transact(lambda engine: times.append(engine.now), lookups=lookups)

    async with one_transaction(owner) as nursery:
        nursery.start_soon(note, Lookups(room=1))
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        nursery.start_soon(note, NO_LOOKUPS)
    assert times[0] == times[1]


def _opening() -> Any:
    from tests.durable.conformance.bench import opening

    return opening()


async def test_a_call_for_which_no_task_waits_is_refused_while_very_many_are_under_way(
    owner: SqliteHost, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(act_thread, "OUTSTANDING", 2)
    guest, told = owner.guest(), list[Any]()
    begun: list[bool] = []
    with pytest.raises(StoreUnavailableError, match="not open"):
        guest.begin("step", (1, (), 1), told.append)
    async with guest.open(_opening()):
        await guest.join("me")
        for name in WAITS | {"join", "leave", "declare_dead", "beat", "look"}:
            assert not guest.begin(name, (), told.append)
        assert not guest.begin("do", (Clear(None, "main", None), "clear"), told.append)
        async with one_transaction(owner):
            begun += [guest.begin("step", (1, (), 1), told.append) for _ in range(2)]
        await guest.beat()  # it is done after the step
    assert begun == [True, False]
    assert told == [Value(Step((), (), (), None))]


# ---- over a socket


@pytest.fixture
async def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What clients ask for, by name."""
    names, hear = list[str](), server._ServedLink._begin

    def note(link: Any, number: int, me: str, name: str, arguments: Any) -> bool:
        names.append(name)
        return hear(link, number, me, name, arguments)

    monkeypatch.setattr(server._ServedLink, "_begin", note)
    return names


@asynccontextmanager
async def served(owner: SqliteHost, **options: Any) -> AsyncIterator[DurableLanes]:
    """Lanes over a socket of the owner of a file."""
    socket = owner.store.path.with_name("socket")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, str(socket), owner.guest)
        async with open_durable_lanes(client(socket), **options) as lanes:
            yield lanes
        nursery.cancel_scope.cancel()


async def test_a_submitter_is_told_how_its_job_ends_without_asking(
    owner: SqliteHost, calls: list[str]
) -> None:
    async with served(owner, handlers={"echo": echo}) as lanes:
        assert await (await lanes.submit("echo", 7)).wait() == 7
        assert "wait" not in calls
        many = await lanes.submit_many(Submission(name="echo", payload=n) for n in range(9))
        assert [await job.wait() for job in many[::-1]] == [*range(9)][::-1]


async def test_a_large_result_is_asked_for(owner: SqliteHost, calls: list[str]) -> None:
    async with served(owner, handlers={"echo": echo}) as lanes:
        large = "x" * server.TOLD_SIZE
        assert await (await lanes.submit("echo", large)).wait() == large
        assert "wait" in calls


async def test_a_refusal_reaches_the_caller_over_the_wire(owner: SqliteHost) -> None:
    async with served(owner, handlers={"echo": echo}) as lanes:
        with pytest.raises(UnknownLaneError, match="nowhere"):
            await lanes.submit("echo", 1, lane="nowhere")


async def test_a_job_that_another_process_ends_is_asked_for(
    owner: SqliteHost, calls: list[str]
) -> None:
    async with served(owner, handlers={}, worker=False) as lanes:
        job = await lanes.submit("echo", 1)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(LaneClearedError):
                    await job.wait()

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            async with open_durable_lanes(
                SqliteStore(owner.store.path), {}, worker=False
            ) as another:
                await another.clear("main")
        assert calls.count("wait") == 1


async def test_an_end_is_told_once_though_other_news_of_the_job_come_before(
    owner: SqliteHost, calls: list[str]
) -> None:
    async def says(payload: Any) -> Any:
        run = current_job()
        assert run is not None
        await run.emit("begun")
        await run.messages().__anext__()
        return payload

    async with served(owner, handlers={"says": says}) as lanes:
        job = await lanes.submit("says", 7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.wait)
            await anext(job.events())
            await lanes.send(job.id, "go on")
        assert "wait" not in calls


# ---- the client


def client(path: Path, **options: Any) -> ServedStoreClient:
    return ServedStoreClient(lambda: connect_unix(str(path)), name="the served file", **options)


async def test_a_server_that_is_not_there_is_not_available(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    store = client(tmp_path / "nothing")
    assert repr(store) == "<store the served file>"
    with pytest.raises(StoreUnavailableError, match="has not answered"):
        async with open_durable_lanes(store, {}, worker=False):
            raise AssertionError


async def test_a_store_that_cannot_be_opened_says_why_over_the_wire(tmp_path: Path) -> None:
    class Newer:
        max_payload = 1

        @asynccontextmanager
        async def open(self, opening: Any) -> AsyncIterator[None]:
            raise StoreVersionError("too new")
            yield

    make: Callable[[], Any] = Newer
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_unix, f"{tmp_path}/socket", make)
        with pytest.raises(StoreVersionError, match="too new"):
            async with open_durable_lanes(client(tmp_path / "socket"), {}, worker=False):
                raise AssertionError
        nursery.cancel_scope.cancel()


async def test_messages_come_whole_and_a_cancelled_send_cuts_the_link() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        one = SocketLink(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        theirs.setblocking(True)
        theirs.sendall(b'["first"]\n["sec')
        assert await one.receive() == '["first"]'
        theirs.sendall(b'ond"]\n')
        assert await one.receive() == '["second"]'
        filled = 0
        with suppress(BlockingIOError):
            while True:
                filled += ours.send(b"x" * 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, "of which no part is sent")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert len(theirs.recv(2 * filled, socket.MSG_WAITALL | socket.MSG_DONTWAIT)) == filled
        await one.send("whole")
        assert theirs.recv(100) == b"whole\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, "x" * 10_000_000)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.BrokenResourceError):
            await one.send("more")


JOB = 7


class Scripted:
    """A server of a script: what it answers to each call, by verb; None: nothing."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.breaks_next_send = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self._replies, self._reply = trio.open_memory_channel[str](100)
        yield self

    async def send(self, message: str) -> None:
        await trio.lowlevel.checkpoint()
        for call in decode(message):
            if len(call) == 2:
                self._reply_with(call[0], self.answers.get("open", 1000))
                continue
            number, _, verb, _ = call
            self.asked.append(verb)
            if self.breaks_next_send:
                self.breaks_next_send = False
                self._replies.close()
                raise trio.BrokenResourceError
            answers = self.answers.get(verb, [])
            answer = answers.pop(0) if answers else None
            if answer is not None:
                self._reply_with(number, answer)

    def _reply_with(self, number: int, answer: Any) -> None:
        more = (True,) if answer == (JOB,) else ()  # the end of this job is told
        self._replies.send_nowait(encode(((number, answer, *more),)))

    async def receive(self) -> str:
        return await self._reply.receive()


@asynccontextmanager
async def scripted(server: Scripted, patience: float = 5.0) -> AsyncIterator[ServedStoreClient]:
    store = ServedStoreClient(server.connect, name="the script", patience=patience)
    async with store.open(_opening()):
        yield store


async def test_a_wait_whose_answer_is_lost_is_asked_again(autojump_clock: MockClock) -> None:
    server = Scripted(wait=[None, "not yet", Ended(DurableState.SUCCEEDED, "7")])
    async with scripted(server) as store:
        assert await store.wait(1) == Ended(DurableState.SUCCEEDED, "7")
    assert server.asked == ["wait"] * 3


async def submit(store: ServedStoreClient) -> None:
    assert await store.do(Enqueue([new_job()]), "ticket") == (JOB,)


async def test_a_job_of_whose_end_nothing_is_told_is_asked_for_at_last(
    autojump_clock: MockClock,
) -> None:
    server = Scripted(do=[(JOB,)], wait=[Ended(DurableState.SUCCEEDED, "7")])
    async with scripted(server) as store:
        await submit(store)
        assert await store.wait(JOB) == Ended(DurableState.SUCCEEDED, "7")
    assert trio.current_time() == 20


async def test_a_job_whose_end_was_not_told_before_the_link_was_cut_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    server = Scripted(do=[(JOB,)], wait=[Ended(DurableState.SUCCEEDED, "7")])
    async with scripted(server) as store:
        await submit(store)
        server._replies.close()
        assert await store.wait(JOB) == Ended(DurableState.SUCCEEDED, "7")
    assert trio.current_time() == RECONNECT_AFTER


async def test_waiting_to_be_told_ends_when_the_server_is_gone_for_good(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(StoreUnavailableError, match="is gone"):
        async with scripted(Scripted(do=[(JOB,)])) as store:
            await submit(store)
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    with pytest.raises(StoreUnavailableError, match="is gone"):
                        await store.wait(JOB)

                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                store.give_up("it has ended")
    assert trio.current_time() == 0


async def test_an_opening_that_is_refused_is_not_tried_again() -> None:
    with pytest.raises(StoreVersionError, match="too new"):
        async with scripted(Scripted(open=StoreVersionError("too new"))):
            raise AssertionError


async def test_a_wait_raises_the_error_of_the_store() -> None:
    async with scripted(Scripted(wait=[StoreError("damaged")])) as store:
        with pytest.raises(StoreError, match="damaged"):
            await store.wait(1)


async def test_a_store_that_is_not_available_behind_a_wire_may_have_done_the_call() -> None:
    async with scripted(Scripted(beat=[StoreUnavailableError("full")])) as store:
        with pytest.raises(StoreUnavailableError, match="full") as caught:
            await store.beat()
        assert caught.value.unknown


async def test_a_call_on_a_link_that_breaks_is_sent_over_the_next(
    autojump_clock: MockClock,
) -> None:
    server = Scripted(beat=[True])
    async with scripted(server) as store:
        server.breaks_next_send = True
        assert await store.beat()
    assert server.asked == ["beat", "beat"]


async def test_a_call_that_is_under_way_when_the_store_is_closed_is_not_available(
    autojump_clock: MockClock,
) -> None:
    caught: list[BaseException] = []

    async def beat(store: ServedStoreClient) -> None:
        try:
            await store.beat()
        except StoreUnavailableError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery:
        async with scripted(Scripted()) as store:
            nursery.start_soon(beat, store)
            await wait_all_tasks_blocked()
    (error,) = caught
    assert "is not open" in str(error)


async def test_a_server_that_refuses_a_client_later_ends_its_calls(
    autojump_clock: MockClock,
) -> None:
    server = Scripted()
    with pytest.raises(StoreVersionError, match="too new"):
        async with scripted(server) as store:
            server.answers["open"] = StoreVersionError("too new")  # it was started anew
            server._replies.close()
            with pytest.raises(StoreVersionError, match="too new"):
                await store.beat()


class Cut(Scripted):
    """A server that is there once, until the test cuts the link."""

    is_cut = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        if self.is_cut:
            raise ConnectionRefusedError
        async with super().connect():
            yield self

    def cut(self) -> None:
        self.is_cut = True
        self._replies.close()


@asynccontextmanager
async def cut_off(server: Cut) -> AsyncIterator[ServedStoreClient]:
    """A client that may have no link at the end."""
    with suppress(StoreUnavailableError):
        async with scripted(server) as store:
            yield store


@pytest.mark.parametrize("question", [AllLanes(), Check()])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_question_is_cancelled_at_once(
    question: Any, is_cut: bool, autojump_clock: MockClock
) -> None:
    server = Cut()
    async with cut_off(server) as store:
        if is_cut:
            server.cut()
        with trio.move_on_after(2) as cancelled:
            await store.look(question)
        assert cancelled.cancelled_caught
        assert trio.current_time() == 2


async def test_an_act_is_not_cancelled_within_the_patience(autojump_clock: MockClock) -> None:
    async with scripted(Scripted()) as store:
        with trio.move_on_after(2), pytest.raises(StoreUnavailableError) as caught:
            await store.do(DropLog("log"), "ticket")
        assert caught.value.unknown
        assert trio.current_time() == 5


async def test_the_patience_of_a_long_call_counts_from_the_loss_of_the_link(
    autojump_clock: MockClock,
) -> None:
    server = Cut()
    async with cut_off(server) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_later, server)
            with pytest.raises(StoreUnavailableError) as caught:
                await store.look(Check())
            assert caught.value.unknown
            assert trio.current_time() == 100 + 5
            with pytest.raises(StoreUnavailableError):
                await store.look(Check())
            assert trio.current_time() == 100 + 5 + 5


async def cut_later(server: Cut) -> None:
    await trio.sleep(100)
    server.cut()


async def test_a_long_call_without_an_answer_ends_at_last(autojump_clock: MockClock) -> None:
    async with scripted(Scripted()) as store:
        with pytest.raises(StoreUnavailableError):
            await store.look(Check())
        assert trio.current_time() == 600


async def test_all_calls_of_a_server_that_is_gone_for_good_fail_at_once(
    autojump_clock: MockClock,
) -> None:
    server, failed = Cut(), []

    async def fails(call: Callable[[], Any], is_unknown: bool) -> None:
        with pytest.raises(StoreUnavailableError, match="is gone: it has ended") as caught:
            await call()
        assert caught.value.final
        assert caught.value.unknown is is_unknown
        failed.append(trio.current_time())

    with pytest.raises(StoreUnavailableError, match="is gone"):
        async with scripted(server) as store:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails, store.beat, True)
                nursery.start_soon(fails, partial(store.wait, 1), True)
                await wait_all_tasks_blocked()
                store.give_up("it has ended")
            await fails(store.beat, False)
            server.cut()
            await trio.sleep(1)
            await fails(store.beat, False)
    assert failed == [0, 0, 0, 1]


async def test_lanes_whose_store_is_gone_for_good_end_at_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemory()(tmp_path)
    ended: list[float] = []

    async def hangs(payload: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    with trio.CancelScope() as everything:
        async with open_durable_lanes(store, {"hangs": hangs}, lease_ttl=3600) as lanes:
            await lanes.submit("hangs")
            await trio.sleep(1)
            store.give_up("it has ended")
            everything.cancel()
            await trio.lowlevel.checkpoint()
    assert ended == [1]
    assert trio.current_time() < 2  # there is nobody who takes the reports
    assert "the ends of 1 runs could not be reported within 0 s" in caplog.text


async def test_serving_a_connection_ends_if_its_first_message_is_no_opening() -> None:
    sends, receives = trio.open_memory_channel[str](9)
    sends.send_nowait(encode(((1, "", "beat", ()),)))
    await serve(Ends(sends, receives), MemoryStore())


@pytest.mark.parametrize("begins", [False, True])
async def test_a_fault_of_the_server_is_not_the_end_of_it(
    begins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        instance = ""
        max_payload = 1

        @asynccontextmanager
        async def open(self, opening: Any) -> AsyncIterator[None]:
            yield

        async def wake(self) -> AsyncIterator[None]:
            await trio.sleep_forever()
            yield

        async def beat(self) -> bool:
            raise RuntimeError("a bug")

    def begin(*_: Any) -> bool:
        raise RuntimeError("a bug")

    if begins:
        Broken.begin = begin  # type: ignore[attr-defined]

    broken: Any = Broken()
    there, here = trio.open_memory_channel[str](9), trio.open_memory_channel[str](9)
    there[0].send_nowait(encode(((1, _opening()),)))
    there[0].send_nowait(encode(((2, "", "beat", ()),)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, Ends(here[0], there[1]), broken)
        messages: list[Any] = []
        while len(messages) < 2:
            messages += decode(await here[1].receive())
        assert messages[0] == (1, 1)
        number, error = messages[1]
        assert number == 2
        assert "the server of the store failed: RuntimeError" in str(error)
        assert error.unknown
        there[0].close()
    assert "the call 'beat' to the store failed" in caplog.text


async def test_what_is_posted_in_one_pass_is_one_batch_unless_it_is_large() -> None:
    sends, receives = trio.open_memory_channel[str](9)
    mail = Mail(Ends(sends, receives))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mail.send)
        for message in (1, 2, "x" * BATCH_SIZE, 3):
            mail.post(message)
        assert decode(await receives.receive()) == (1, 2, "x" * BATCH_SIZE)
        assert decode(await receives.receive()) == (3,)
        nursery.cancel_scope.cancel()


def test_names_may_be_of_a_subclass_of_str() -> None:
    class Lane(StrEnum):
        MAIN = "main"

    assert decode(encode((Lane.MAIN, True))) == ("main", True)


def test_an_error_that_the_wire_does_not_know_is_a_store_error() -> None:
    error = decode(encode(PayloadError("too large")))
    assert type(error) is StoreError
    assert str(error) == "the store failed: PayloadError: too large"


@pytest.mark.many_seeds(40)  # in three of these, the server hears of it before the client does
def test_opening_that_is_cancelled_at_any_step_ends_in_whichever_order_tasks_hear_of_it(
    tmp_path: Path,
) -> None:
    def served() -> Store:
        store = InMemory()(tmp_path)
        store.patience = 5.0
        return store

    cancel_open(served)


def test_opening_that_is_cancelled_at_any_step_ends(tmp_path: Path) -> None:
    numbers = count()

    def served() -> ServedStoreClient:
        folder = tmp_path / f"{next(numbers)}"
        folder.mkdir()
        return Served()(folder)

    cancel_open(served)
    cancel_open(MemoryStore)
