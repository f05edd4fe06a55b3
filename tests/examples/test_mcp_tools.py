"""Tools of MCP servers in `run_tools`, as `docs/agents/mcp.md` describes them.

In memory and in virtual time over both of the protocol's ways: sessions with a handshake
("legacy"), where a server may ask in the middle of a call, and those since 2026-07-28 ("auto"),
where a question ends the call, and its answer is part of the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Annotated, Any

import anyio
import pytest
import trio
from mcp import Client, MCPError
from mcp.client._memory import InMemoryTransport
from mcp.client.session import ElicitationFnT
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError as ServersToolError
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, ElicitResult
from pydantic import BaseModel
from trio.testing import MockClock

from examples.mcp_tools.servers import CONNECT_SECONDS, UNREAD, ToolError, ToolServer, open_server
from trio_lanes import JobTimeoutError, current_job, open_lanes
from trio_lanes.agents import ActionGate, ToolCall, ToolEvent, run_tools

pytestmark = pytest.mark.both_doors
both_ways = pytest.mark.parametrize("mode", ["legacy", "auto"])


class Consent(BaseModel):
    sure: bool


async def ask(to: str) -> Elicit[Consent]:
    return Elicit(f"Pay {to}?", Consent)


class Bank:
    """A server in this process, which writes down what it has been asked to do."""

    def __init__(self) -> None:
        self.server = server = MCPServer("bank", log_level="CRITICAL")
        self.log: list[str] = []

        @server.tool()
        async def work(name: str, seconds: float, context: Context, reports: int = 0) -> str:
            self.log.append(f"{name} begins")
            try:
                for number in range(reports):
                    await context.report_progress(number + 1, reports)
                await anyio.sleep(seconds)
            except anyio.get_cancelled_exc_class():
                self.log.append(f"{name} is cancelled")
                raise
            self.log.append(f"{name} ends")
            return name

        @server.tool()
        async def tick(context: Context) -> None:
            while True:
                await anyio.sleep(1)
                await context.report_progress(anyio.current_time())

        @server.tool()
        async def refuse() -> str:
            raise ServersToolError("no such account")

        @server.tool()
        async def pay(to: str, consent: Annotated[ElicitationResult[Consent], Resolve(ask)]) -> str:
            self.log.append(f"{to}: {consent.action}")
            return f"{to}: {consent.action}"


def work(server: ToolServer, name: str, seconds: float, reports: int = 0, **more: Any) -> ToolCall:
    arguments = {"name": name, "seconds": seconds, "reports": reports}
    return server.call(name, "work", arguments, **more)


def pay(server: ToolServer, to: str, **more: Any) -> ToolCall:
    return server.call(to, "pay", {"to": to}, **more)


async def events_of(calls: list[ToolCall], **options: Any) -> list[ToolEvent]:
    async with run_tools(calls, **options) as run:
        return [event async for event in run]


def shown(events: list[ToolEvent]) -> list[tuple[str, str, Any]]:
    return [(event.item_id, event.kind, event.data) for event in events]


# ---- order, limits, progress


@both_ways
@pytest.mark.many_seeds(5)
async def test_calls_run_at_once_and_their_events_are_in_the_order_of_the_calls(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [work(server, "a", 3, reports=2), work(server, "b", 1, reports=1)]
        began = trio.current_time()
        assert shown(await events_of(calls)) == [
            ("a", "output", "1 of 2"),
            ("a", "output", "2 of 2"),
            ("a", "result", "a"),
            ("b", "output", "1 of 1"),
            ("b", "result", "b"),
        ]
        assert trio.current_time() - began == 3
    assert bank.log[2:] == ["b ends", "a ends"]  # they begin in any order


@both_ways
async def test_a_limit_and_a_serial_group_hold_for_calls_of_a_server(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        began = trio.current_time()
        await events_of([work(server, name, 2) for name in "abc"], limit=2)
        assert trio.current_time() - began == 4
        bank.log.clear()
        await events_of([work(server, name, 1, serial_group="file") for name in "ab"])
    assert bank.log == ["a begins", "a ends", "b begins", "b ends"]


@both_ways
@pytest.mark.many_seeds(5)
async def test_a_server_that_reports_much_is_held_up_by_no_reader_and_the_reports_stay_in_order(
    mode: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [work(server, "slow", 50), work(server, "chatty", 1, reports=300)]
        async with run_tools(calls, buffer=2) as run:
            await trio.sleep(10)
            assert "chatty ends" in bank.log
            assert [result.value for result in run.results] == ["chatty"]  # nothing was read yet
            events = [event async for event in run]
    assert events[-1].data == "chatty"
    numbers = [int(event.data.split()[0]) for event in events if event.kind == "output"]
    assert numbers
    assert numbers == sorted(set(numbers))
    assert not caplog.records


@both_ways
async def test_of_the_reports_that_wait_to_be_read_the_newest_are_kept(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [work(server, "slow", 2), work(server, "chatty", 5, reports=300)]
        outputs = [event.data for event in await events_of(calls, buffer=2) if "of" in event.data]
    assert outputs[-UNREAD:] == [f"{number} of 300" for number in range(301 - UNREAD, 301)]


@both_ways
@pytest.mark.many_seeds(10)
async def test_a_report_that_comes_when_its_call_has_ended_is_dropped_without_a_word(
    mode: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [server.call(f"{number}", "tick") for number in range(20)]
        async with run_tools(calls) as run:
            await trio.sleep(3)
            for call in calls:
                run.cancel(call.id)
        assert {result.kind for result in run.results} == {"cancelled"}
    assert not caplog.records


@both_ways
async def test_a_cancellation_hides_no_result_whose_reports_were_not_read(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [work(server, "slow", 50), work(server, "chatty", 1, reports=300)]
        async with run_tools(calls, buffer=2) as run:
            await trio.sleep(1.5)
            assert run.cancel("chatty")
            await trio.sleep(5)
            assert [result.kind for result in run.results] == ["result"]


@both_ways
async def test_one_run_has_calls_of_several_servers(mode: str, autojump_clock: MockClock) -> None:
    one, two = Bank(), Bank()
    async with (
        open_server(lambda: Client(one.server, mode=mode)) as first,
        open_server(lambda: Client(two.server, mode=mode)) as second,
    ):
        calls = [work(first, "a", 2), work(second, "b", 1), work(first, "c", 1)]
        assert [event.item_id for event in await events_of(calls)] == ["a", "b", "c"]
    assert [entry for entry in two.log if entry.endswith("begins")] == ["b begins"]


# ---- errors, cancellation, timeouts


@both_ways
async def test_a_tool_that_fails_ends_with_an_error_and_the_others_go_on(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        failing = server.call("a", "refuse")
        unknown = server.call("b", "nothing")
        events = await events_of([failing, unknown, work(server, "c", 1)])
    assert [event.kind for event in events] == ["error", "error", "result"]
    assert isinstance(events[0].data, ToolError)
    assert "no such account" in str(events[0].data)
    assert "nothing" in str(events[1].data)


@both_ways
async def test_a_cancelled_call_is_cancelled_at_the_server(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        async with run_tools([work(server, "a", 5), work(server, "b", 5)]) as run:
            await trio.sleep(1)
            assert run.cancel("a", "not needed")
            events = [event async for event in run]
        assert shown(events) == [("a", "cancelled", "not needed"), ("b", "result", "b")]
    assert "a is cancelled" in bank.log


@both_ways
async def test_a_turn_that_ends_by_its_timeout_cancels_its_calls_at_the_server(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    run: Any = None

    async def turn(server: ToolServer) -> None:
        nonlocal run
        async with run_tools([work(server, "a", 50), work(server, "b", 50)]) as run:
            async for _ in run:
                pass

    async with (
        open_server(lambda: Client(bank.server, mode=mode)) as server,
        open_lanes() as lanes,
    ):
        began = trio.current_time()
        job = lanes.submit_nowait(turn, server, session="alice", timeout=2)
        with pytest.raises(JobTimeoutError):
            await job.wait()
        assert trio.current_time() - began == 2
        assert [result.kind for result in run.results] == ["cancelled", "cancelled"]
        await trio.sleep(1)
        assert {"a is cancelled", "b is cancelled"} <= set(bank.log)
        assert shown(await events_of([work(server, "c", 1)])) == [("c", "result", "c")]


@both_ways
async def test_a_timeout_ends_a_call_with_an_error_and_tells_the_server(
    mode: str, autojump_clock: MockClock
) -> None:
    bank = Bank()
    async with open_server(lambda: Client(bank.server, mode=mode)) as server:
        calls = [work(server, "a", 5, timeout=2), work(server, "b", 3)]
        timed_out, _ = await events_of(calls)
    assert timed_out.kind == "error"
    assert isinstance(timed_out.data, MCPError)
    assert timed_out.data.code == REQUEST_TIMEOUT
    assert "a is cancelled" in bank.log


# ---- approvals


def approving(gates: dict[str, ActionGate], lost: list[str]) -> ElicitationFnT:
    """The callback of the page, with the questions where a test finds them."""

    async def approve(context: Any, params: Any) -> ElicitResult:
        job = current_job()
        if job is None:
            lost.append(params.message)
            return ElicitResult(action="cancel")
        gate = gates[params.message] = ActionGate(["answer"])
        async with job.yield_slot(reason=params.message):
            [answer] = await gate.wait()
        if answer.kind == "cancelled":
            return ElicitResult(action="cancel")
        if answer.value is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=answer.value)

    return approve


class Asking:
    """Turns that pay, and the questions of their bank."""

    def __init__(self, mode: str) -> None:
        self.bank = Bank()
        self.gates: dict[str, ActionGate] = {}
        self.lost: list[str] = []
        self.events: list[ToolEvent] = []
        self._mode = mode

    def client(self) -> Client:
        # The streams of a server in this process would bring the context of a call to its question.
        server = self.bank.server if self._mode == "auto" else Line(self.bank).transport()
        approve = approving(self.gates, self.lost)
        return Client(server, mode=self._mode, elicitation_callback=approve)

    async def turn(self, *names: str, timeout: float | None = None) -> None:
        async with open_server(self.client) as server:
            calls = [pay(server, name, timeout=timeout) for name in names]
            self.events = await events_of(calls)


@both_ways
async def test_a_question_of_a_server_is_an_approval_for_which_the_turn_lends_its_slot(
    mode: str, autojump_clock: MockClock
) -> None:
    asking = Asking(mode)
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(asking.turn, "ann", "bob", "cid", session="alice")
        await trio.sleep(1)
        assert set(asking.gates) == {"Pay ann?", "Pay bob?", "Pay cid?"}
        assert await lanes.run(pong, session="bob") == "pong"  # in the only slot
        asking.gates["Pay cid?"].cancel("no answer")
        asking.gates["Pay bob?"].submit({"answer": None})
        await trio.sleep(1)
        assert not job.done
        asking.gates["Pay ann?"].submit({"answer": {"sure": True}})
        await job.wait()
    assert shown(asking.events) == [
        ("ann", "result", "ann: accept"),
        ("bob", "result", "bob: decline"),
        ("cid", "result", "cid: cancel"),
    ]


async def pong() -> str:
    return "pong"


@pytest.mark.parametrize(("mode", "kind"), [("legacy", "error"), ("auto", "result")])
async def test_a_timeout_counts_the_wait_for_a_person_before_2026_07_28_and_not_since(
    mode: str, kind: str, autojump_clock: MockClock
) -> None:
    asking = Asking(mode)
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(partial(asking.turn, timeout=5), "ann", session="alice")
        await trio.sleep(60)
        assert job.done is (kind == "error")
        asking.gates["Pay ann?"].submit({"answer": {"sure": True}})
        await job.wait()
    assert [event.kind for event in asking.events] == [kind]


@both_ways
async def test_a_turn_that_is_stopped_while_a_person_is_asked_pays_nothing(
    mode: str, autojump_clock: MockClock
) -> None:
    asking = Asking(mode)
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(asking.turn, "ann", session="alice")
        await trio.sleep(1)
        job.cancel()
        await job.wait_done()
        asking.gates["Pay ann?"].submit({"answer": {"sure": True}})
        assert await lanes.run(pong, session="alice") == "pong"
    assert asking.bank.log == []


@pytest.mark.parametrize(("mode", "known"), [("legacy", False), ("auto", True)])
async def test_a_server_that_is_open_for_all_turns_asks_in_the_turn_of_the_call_since_2026_07_28(
    mode: str, known: bool, autojump_clock: MockClock
) -> None:
    asking = Asking(mode)
    async with open_server(asking.client) as server, open_lanes() as lanes:

        async def turn(name: str) -> list[ToolEvent]:
            return await events_of([pay(server, name)])

        jobs = [lanes.submit_nowait(turn, name, session=name) for name in ("ann", "bob")]
        await trio.sleep(1)
        for gate in asking.gates.values():
            gate.submit({"answer": {"sure": True}})
        ends = [shown(await job.wait())[0][2] for job in jobs]
    assert ends == (["ann: accept", "bob: accept"] if known else ["ann: cancel", "bob: cancel"])
    assert bool(asking.lost) is not known


# ---- a session that is lost


class Line:
    """Connections to a server, as they are made, cut, and broken as those over HTTP."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self.made = 0
        self.opens_after = 0.0
        self._cut = anyio.Event()
        self._broken = anyio.Event()

    def client(self) -> Client:
        transport: AbstractAsyncContextManager[Any] = self.transport()
        return Client(transport, mode="legacy")

    def cut(self) -> None:
        """As if the process had ended: the streams are closed."""
        self._cut.set()

    def break_(self) -> None:
        """As if a connection over HTTP had failed: a task of the transport fails."""
        self._broken.set()

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        self.made += 1
        self._cut, self._broken = anyio.Event(), anyio.Event()
        await anyio.sleep(self.opens_after)

        async def cut(read: Any) -> None:
            await self._cut.wait()
            await read.aclose()

        async def fail() -> None:
            await self._broken.wait()
            raise ConnectionError("no route")

        async with anyio.create_task_group() as tasks:
            async with InMemoryTransport(self._bank.server) as (read, write):
                ours, theirs = anyio.create_memory_object_stream[Any](0)

                async def pump() -> None:
                    async with ours:
                        async for message in read:
                            await ours.send(message)

                tasks.start_soon(pump)
                tasks.start_soon(cut, ours)
                tasks.start_soon(fail)
                yield theirs, write
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("way", [Line.cut, Line.break_])
@pytest.mark.many_seeds(5)
async def test_calls_of_a_session_that_is_lost_end_with_errors_and_the_next_call_connects_again(
    way: Callable[[Line], None], autojump_clock: MockClock
) -> None:
    bank, other = Bank(), Bank()
    line = Line(bank)

    async def turn() -> list[list[ToolEvent]]:
        async with (
            open_server(line.client) as server,
            open_server(lambda: Client(other.server)) as second,
        ):
            calls = [work(server, "a", 5), work(second, "b", 5), work(server, "c", 5)]
            first = await events_of(calls)
            assert trio.current_time() - began == 5  # the turn went on
            assert line.made == 1  # and nothing connects that no call wants
            return [first, await events_of([work(server, "d", 1), work(server, "e", 1)])]

    began = trio.current_time()
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(turn, session="alice")
        await trio.sleep(2)
        way(line)
        lost, after = await job.wait()
    assert [event.kind for event in lost] == ["error", "result", "error"]
    for event in (lost[0], lost[2]):
        assert isinstance(event.data, MCPError)
        assert event.data.code == CONNECTION_CLOSED
    assert [event.data for event in after] == ["d", "e"]
    assert line.made == 2
    begun = [entry for entry in bank.log if entry.endswith("begins")]
    assert sorted(begun) == ["a begins", "c begins", "d begins", "e begins"]  # each of them once


async def test_a_session_that_is_lost_between_calls_fails_the_next_call_at_most(
    autojump_clock: MockClock,
) -> None:
    line = Line(Bank())
    async with open_server(line.client) as server:
        await events_of([work(server, "a", 1)])
        line.cut()
        await trio.sleep(1)
        [lost] = await events_of([work(server, "b", 1)])
        assert lost.kind == "error"
        line.break_()
        assert shown(await events_of([work(server, "c", 1)])) == [("c", "result", "c")]
        line.break_()
        await trio.sleep(1)
        assert shown(await events_of([work(server, "d", 1)])) == [("d", "result", "d")]


async def test_a_server_that_cannot_be_reached_ends_its_calls_and_is_tried_again_by_the_next(
    autojump_clock: MockClock,
) -> None:
    line = Line(Bank())
    line.opens_after = 1e6
    async with open_server(line.client) as server:
        calls = [work(server, "a", 1), work(server, "b", 1)]
        events = await events_of(calls)
        assert trio.current_time() == CONNECT_SECONDS
        assert [event.kind for event in events] == ["error", "error"]
        assert "cannot be reached" in str(events[0].data)
        assert line.made == 1
        line.opens_after = 2.0
        assert shown(await events_of([work(server, "c", 1)])) == [("c", "result", "c")]
        assert line.made == 2


async def test_a_call_that_waits_for_a_connection_is_cancelled_alone(
    autojump_clock: MockClock,
) -> None:
    line = Line(Bank())
    line.opens_after = 5.0
    async with open_server(line.client) as server:
        async with run_tools([work(server, "a", 1), work(server, "b", 1)]) as run:
            await trio.sleep(1)
            run.cancel("a")
            events = [event async for event in run]
        assert [event.kind for event in events] == ["cancelled", "result"]
    assert line.made == 1


async def test_an_error_in_the_block_of_a_server_leaves_it_in_no_group() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_server(lambda: Client(Bank().server)):
            raise ZeroDivisionError
