"""run_tools: what runs when, what is heard when, and how each call ends."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal

import pytest
import trio
from trio.testing import (
    MockClock,
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from trio_lanes import current_job, open_lanes
from trio_lanes.agents import Emit, ToolCall, ToolEvent, ToolResult, ToolRun, run_tools

pytestmark = pytest.mark.both_doors

Order = Literal["call", "completion"]
BOTH: Sequence[Order] = ("call", "completion")


class ToolError(Exception):
    """What tools raise here."""


def says(*outputs: Any, every: float = 1, result: Any = "done") -> Callable[[Emit], Awaitable[Any]]:
    """A tool that emits, with a pause before each output and before its end."""

    async def tool(emit: Emit) -> Any:
        for output in outputs:
            await trio.sleep(every)
            await emit(output)
        await trio.sleep(every)
        return result

    return tool


async def at_once(emit: Emit) -> str:
    return "done"


async def fails(emit: Emit) -> None:
    await emit("before")
    raise ToolError("broken")


async def sleeps(emit: Emit) -> None:
    await trio.sleep_forever()


async def returns_in_spite_of_all(emit: Emit) -> str:
    with trio.CancelScope(shield=True):
        await trio.sleep(2)
    return "done"


def heard(events: Sequence[ToolEvent]) -> list[tuple[str, Any]]:
    """Whose event, and what it said."""
    return [(event.item_id, event.data) for event in events]


def kinds(results: Sequence[ToolResult]) -> list[tuple[str, str]]:
    return [(result.id, result.kind) for result in results]


# ---- order


async def test_by_call_one_tool_is_heard_at_a_time_in_call_order(
    autojump_clock: MockClock,
) -> None:
    calls = [ToolCall("slow", says(1, 2, every=5)), ToolCall("quick", says(3, 4, every=1))]
    async with run_tools(calls) as run:
        events = [event async for event in run]
    assert heard(events) == [
        ("slow", 1),
        ("slow", 2),
        ("slow", "done"),
        ("quick", 3),
        ("quick", 4),
        ("quick", "done"),
    ]
    assert trio.current_time() == 15


async def test_by_completion_is_heard_first_what_was_said_first(autojump_clock: MockClock) -> None:
    calls = [ToolCall("slow", says(1, every=5)), ToolCall("quick", says(2, 3, every=2))]
    async with run_tools(calls, order="completion") as run:
        events = [event async for event in run]
    assert heard(events) == [
        ("quick", 2),
        ("quick", 3),
        ("slow", 1),
        ("quick", "done"),
        ("slow", "done"),
    ]


async def test_the_head_is_heard_live_and_the_next_when_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    calls = [ToolCall("a", says(1, 2, every=5)), ToolCall("b", says(3, 4, every=9))]
    times = []
    async with run_tools(calls) as run:
        async for event in run:
            times.append((event.item_id, event.data, trio.current_time()))
    assert times == [
        ("a", 1, 5),
        ("a", 2, 10),
        ("a", "done", 15),
        ("b", 3, 15),
        ("b", 4, 18),
        ("b", "done", 27),
    ]


@pytest.mark.parametrize("order", BOTH)
@pytest.mark.parametrize("buffer", [0, 1, 64, math.inf])
@pytest.mark.many_seeds(3)
async def test_events_are_numbered_from_0_without_a_gap(
    autojump_clock: MockClock, order: Order, buffer: float
) -> None:
    calls = [ToolCall(str(n), says(*range(4), every=1 + n % 3)) for n in range(6)]
    async with run_tools(calls, order=order, buffer=buffer) as run:
        events = [event async for event in run]
    assert [event.sequence_number for event in events] == list(range(6 * 5))


@pytest.mark.parametrize("order", BOTH)
async def test_an_event_says_whose_it_is(autojump_clock: MockClock, order: Order) -> None:
    calls = [ToolCall("a", says(1)), ToolCall("b", says(2, every=3), final=True)]
    async with run_tools(calls, order=order) as run:
        events = [event async for event in run]
    assert events == [
        ToolEvent(0, 0, "a", "output", 1, False),
        ToolEvent(1, 0, "a", "result", "done", False),
        ToolEvent(2, 1, "b", "output", 2, True),
        ToolEvent(3, 1, "b", "result", "done", True),
    ]


@pytest.mark.parametrize("order", BOTH)
async def test_results_are_in_call_order(autojump_clock: MockClock, order: Order) -> None:
    calls = [
        ToolCall("slow", says(every=5, result=1)),
        ToolCall("broken", fails),
        ToolCall("quick", says(every=1, result=2)),
    ]
    async with run_tools(calls, order=order) as run:
        async for _ in run:
            pass
        first, second, third = run.results
    assert first == ToolResult("slow", "result", 1)
    assert (second.id, second.kind) == ("broken", "error")
    assert isinstance(second.value, ToolError)
    assert third == ToolResult("quick", "result", 2)


async def test_results_are_those_of_the_calls_that_have_ended(autojump_clock: MockClock) -> None:
    calls = [ToolCall("slow", says(every=5)), ToolCall("quick", says(every=1))]
    async with run_tools(calls) as run:
        assert run.results == []
        await trio.sleep(2)
        assert kinds(run.results) == [("quick", "result")]
        async for _ in run:
            pass
        assert kinds(run.results) == [("slow", "result"), ("quick", "result")]


# ---- the buffer


def counts_up(said: list[Any], name: str) -> Callable[[Emit], Awaitable[None]]:
    """A tool that emits ten numbers as fast as it may, and keeps what it has got rid of."""

    async def tool(emit: Emit) -> None:
        for n in range(10):
            await emit(n)
            said.append((name, n))

    return tool


@pytest.mark.parametrize("buffer", [0, 1, 3])
async def test_by_call_each_call_has_a_buffer_of_its_own(
    autojump_clock: MockClock, buffer: int
) -> None:
    said: list[tuple[str, int]] = []
    calls = [ToolCall(name, counts_up(said, name)) for name in "abc"]
    async with run_tools(calls, buffer=buffer) as run:
        await wait_all_tasks_blocked()
        assert sorted(said) == [(name, n) for name in "abc" for n in range(buffer)]
        await anext(run)  # one more of the head
        await wait_all_tasks_blocked()
        assert len(said) == 3 * buffer + 1
        assert len([event async for event in run]) == 3 * 11 - 1


@pytest.mark.parametrize("buffer", [0, 1, 3])
async def test_by_completion_all_calls_share_one_buffer(
    autojump_clock: MockClock, buffer: int
) -> None:
    said: list[tuple[str, int]] = []
    calls = [ToolCall(name, counts_up(said, name)) for name in "abc"]
    async with run_tools(calls, order="completion", buffer=buffer) as run:
        await wait_all_tasks_blocked()
        assert len(said) == buffer
        await anext(run)
        await wait_all_tasks_blocked()
        assert len(said) == buffer + 1
        events = [event async for event in run]
    assert len(events) == 3 * 11 - 1
    for name in "abc":
        assert [n for who, n in said if who == name] == list(range(10))


@pytest.mark.parametrize("order", BOTH)
async def test_how_calls_end_is_kept_without_a_buffer(
    autojump_clock: MockClock, order: Order
) -> None:
    async def raises(emit: Emit) -> None:
        raise ToolError

    calls = [
        ToolCall("sleeps", sleeps),
        ToolCall("quick", at_once),
        ToolCall("broken", raises),
        ToolCall("waits", counts_up([], "waits")),
    ]
    async with run_tools(calls, order=order, buffer=0) as run:
        await wait_all_tasks_blocked()
        assert kinds(run.results) == [("quick", "result"), ("broken", "error")]
        run.cancel("sleeps")
        run.cancel("waits")
        events = [event async for event in run]
    assert len(events) == 4


async def test_what_was_read_makes_room_for_as_much(autojump_clock: MockClock) -> None:
    said: list[tuple[str, int]] = []

    async def tool(emit: Emit) -> None:
        await emit("first")
        await emit("second")
        await trio.sleep(1)
        await counts_up(said, "a")(emit)

    async with run_tools([ToolCall("a", tool)], buffer=2) as run:
        await anext(run)
        await anext(run)
        await trio.sleep(2)
        assert len(said) == 2


@pytest.mark.parametrize("buffer", [0, 1])
@pytest.mark.parametrize("order", BOTH)
async def test_who_waits_for_room_first_is_heard_first(
    autojump_clock: MockClock, order: Order, buffer: int
) -> None:
    async def tool(emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(emit, n)
                await trio.sleep(1)

    async with run_tools([ToolCall("a", tool)], buffer=buffer, order=order) as run:
        await trio.sleep(10)
        events = [event async for event in run]
    assert [event.data for event in events] == [0, 1, 2, 3, 4, None]


async def test_without_a_buffer_an_output_goes_from_hand_to_hand(
    autojump_clock: MockClock,
) -> None:
    emitted = []

    async def tool(emit: Emit) -> None:
        for n in range(3):
            await emit(n)
            emitted.append(trio.current_time())

    async with run_tools([ToolCall("a", tool)], buffer=0) as run:
        for time in (1, 2, 3):
            await trio.sleep(1)
            assert (await anext(run)).data == time - 1
    assert emitted == [1, 2, 3]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("order", BOTH)
@pytest.mark.many_seeds(10)
async def test_full_buffers_never_bring_it_to_a_standstill(
    autojump_clock: MockClock, order: Order, limit: int
) -> None:
    groups = [1, None, 1, 2, None, 2, 1, None, 2, 1]
    calls = [
        ToolCall(str(n), counts_up([], str(n)), serial_group=group)
        for n, group in enumerate(groups)
    ]
    with trio.fail_after(100):
        async with run_tools(calls, limit=limit, order=order, buffer=1) as run:
            events = [event async for event in run]
    assert len(events) == 11 * len(calls)


# ---- limits and groups


class Track:
    """Which tools ran when."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.started: list[str] = []
        self.peak = 0

    def tool(self, name: str, seconds: float = 1) -> Callable[[Emit], Awaitable[str]]:
        async def fn(emit: Emit) -> str:
            self.started.append(name)
            self.running.add(name)
            self.peak = max(self.peak, len(self.running))
            try:
                await trio.sleep(seconds)
            finally:
                self.running.remove(name)
            return name

        return fn


@pytest.mark.parametrize("order", BOTH)
@pytest.mark.many_seeds(5)
async def test_permits_are_taken_in_call_order(autojump_clock: MockClock, order: Order) -> None:
    track = Track()
    seconds = [3, 1, 4, 1, 5, 9, 2, 6]
    calls = [ToolCall(str(n), track.tool(str(n), time)) for n, time in enumerate(seconds)]
    async with run_tools(calls, limit=2, order=order) as run:
        async for _ in run:
            pass
    assert track.peak == 2
    assert sorted(track.started[:2]) == ["0", "1"]
    assert track.started[2:] == ["2", "3", "4", "5", "6", "7"]


async def test_without_a_limit_all_run_at_once(autojump_clock: MockClock) -> None:
    track = Track()
    async with run_tools(ToolCall(str(n), track.tool(str(n))) for n in range(100)) as run:
        async for _ in run:
            pass
    assert track.peak == 100


@pytest.mark.many_seeds(5)
async def test_calls_of_a_serial_group_run_one_after_the_other_in_call_order(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    calls = [
        ToolCall(f"{group}{n}", track.tool(f"{group}{n}", 1 + n % 2), serial_group=group)
        for n in range(5)
        for group in "xy"
    ]
    async with run_tools(calls) as run:
        while any(call.id not in track.started for call in calls):
            await trio.sleep(0.5)
            assert len({name[0] for name in track.running}) == len(track.running)
    for group in "xy":
        assert [name for name in track.started if name[0] == group] == [
            f"{group}{n}" for n in range(5)
        ]
    assert track.peak == 2
    assert len(run.results) == 10


async def test_a_free_permit_goes_to_the_earliest_call_that_need_not_wait_for_its_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    calls = [
        ToolCall("g1", track.tool("g1", 10), serial_group="g"),
        ToolCall("g2", track.tool("g2"), serial_group="g"),
        ToolCall("free1", track.tool("free1", 20)),
        ToolCall("free2", track.tool("free2")),
    ]
    async with run_tools(calls, limit=2) as run:
        await wait_all_tasks_blocked()
        assert sorted(track.started) == ["free1", "g1"]
        await trio.sleep(10.5)
        assert track.started[2:] == ["g2"]
        await trio.sleep(1)
        assert track.started[3:] == ["free2"]
        async for _ in run:
            pass


async def test_a_failed_predecessor_does_not_hold_up_its_group(autojump_clock: MockClock) -> None:
    calls = [ToolCall("a", fails, serial_group=1), ToolCall("b", at_once, serial_group=1)]
    async with run_tools(calls) as run:
        async for _ in run:
            pass
    assert kinds(run.results) == [("a", "error"), ("b", "result")]


# ---- failure


@pytest.mark.parametrize("order", BOTH)
async def test_a_failing_tool_is_one_error_event_and_does_not_stop_the_others(
    autojump_clock: MockClock, order: Order
) -> None:
    calls = [ToolCall("bad", fails), ToolCall("good", says(1, every=2))]
    async with run_tools(calls, order=order) as run:
        events = [event async for event in run]
    output, error, *others = events
    assert (output.kind, output.data) == ("output", "before")
    assert error.kind == "error"
    assert isinstance(error.data, ToolError)
    assert error.data is run.results[0].value
    assert heard(others) == [("good", 1), ("good", "done")]


async def test_a_tool_that_is_not_async_fails_when_it_is_called() -> None:
    async with run_tools([ToolCall("a", lambda emit: 5)]) as run:  # type: ignore[arg-type, return-value]
        (event,) = [event async for event in run]
    assert event.kind == "error"
    assert isinstance(event.data, TypeError)


@pytest.mark.trio_only("it is about scopes of Trio's")
@pytest.mark.parametrize("order", BOTH)
async def test_a_cancel_scope_that_a_tool_left_open_is_its_error_and_each_call_ends_once(
    autojump_clock: MockClock, order: Order
) -> None:
    async def careless(emit: Emit) -> str:
        trio.CancelScope().__enter__()
        return "done"

    calls = [ToolCall("bad", careless), ToolCall("b", at_once), ToolCall("c", at_once)]
    async with run_tools(calls, limit=1, order=order) as run:
        events = [event async for event in run]
    ends = [(event.item_id, event.kind) for event in events]
    assert ends == [("bad", "error"), ("b", "result"), ("c", "result")]
    assert kinds(run.results) == ends
    with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
        raise events[0].data


async def test_a_group_of_errors_is_an_error(autojump_clock: MockClock) -> None:
    async def tool(emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeps, emit)
            nursery.start_soon(fails, emit)

    async with run_tools([ToolCall("a", tool)]) as run:
        async for _ in run:
            pass
    (result,) = run.results
    assert result.kind == "error"
    assert pytest.RaisesGroup(ToolError).matches(result.value)


@pytest.mark.trio_only("asyncio lets a SystemExit out of the loop")
async def test_a_base_exception_leaves_the_block_as_it_leaves_a_nursery(
    autojump_clock: MockClock,
) -> None:
    async def quits(emit: Emit) -> None:
        await trio.sleep(1)
        raise SystemExit(3)

    calls = [ToolCall("a", quits), ToolCall("b", sleeps), ToolCall("c", sleeps, serial_group=1)]
    with pytest.RaisesGroup(SystemExit):
        async with run_tools(calls) as run:
            async for _ in run:
                pass
            await trio.sleep_forever()
    assert kinds(run.results) == [("a", "error"), ("b", "cancelled"), ("c", "cancelled")]


# ---- leaving


@pytest.mark.parametrize("order", BOTH)
async def test_leaving_early_cancels_what_runs_and_gives_each_unfinished_call_a_result(
    autojump_clock: MockClock, order: Order
) -> None:
    track = Track()
    calls = [
        ToolCall("finished", at_once),
        ToolCall("broken", fails),
        ToolCall("running", track.tool("running", 100)),
        ToolCall("stuck", counts_up([], "stuck")),
        ToolCall("waiting", track.tool("waiting")),
        ToolCall("waiting too", track.tool("waiting too"), serial_group=1),
    ]
    async with run_tools(calls, limit=2, order=order, buffer=2) as run:
        await wait_all_tasks_blocked()
    assert trio.current_time() == 0
    assert track.started == ["running"]
    assert track.running == set()
    assert kinds(run.results) == [
        ("finished", "result"),
        ("broken", "error"),
        ("running", "cancelled"),
        ("stuck", "cancelled"),
        ("waiting", "cancelled"),
        ("waiting too", "cancelled"),
    ]


@pytest.mark.many_seeds(5)
async def test_a_tool_that_was_never_run_is_not_called_when_the_block_is_left() -> None:
    async def never(emit: Emit) -> None:
        raise AssertionError

    async with run_tools([ToolCall("a", never), ToolCall("b", never)]) as run:
        pass
    assert kinds(run.results) == [("a", "cancelled"), ("b", "cancelled")]


async def test_leaving_waits_for_tools_that_end_late(autojump_clock: MockClock) -> None:
    async with run_tools([ToolCall("a", returns_in_spite_of_all)]) as run:
        await wait_all_tasks_blocked()
    assert trio.current_time() == 2
    assert run.results == [ToolResult("a", "result", "done")]


async def test_what_fails_besides_its_cancellation_is_an_error(autojump_clock: MockClock) -> None:
    async def breaks(emit: Emit) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ToolError

    async with run_tools([ToolCall("a", breaks)]) as run:
        await wait_all_tasks_blocked()
    (result,) = run.results
    assert result.kind == "error"
    assert isinstance(result.value, ToolError)


@pytest.mark.trio_only("asyncio has no shields")
@pytest.mark.parametrize("order", BOTH)
async def test_a_tool_that_emits_without_a_reader_is_not_held_up(
    autojump_clock: MockClock, order: Order
) -> None:
    async def tool(emit: Emit) -> str:
        with trio.CancelScope(shield=True):
            for n in range(10):
                await emit(n)
        return "done"

    async with run_tools([ToolCall("a", tool)], buffer=1, order=order) as run:
        await wait_all_tasks_blocked()
    assert run.results == [ToolResult("a", "result", "done")]


async def test_an_exception_leaves_the_block_as_it_is(autojump_clock: MockClock) -> None:
    error = ToolError("mine")
    with pytest.raises(ToolError) as caught:
        async with run_tools([ToolCall("a", sleeps), ToolCall("b", fails)]) as run:
            await wait_all_tasks_blocked()
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert kinds(run.results) == [("a", "cancelled"), ("b", "error")]


async def test_a_cancellation_from_outside_ends_all_calls(autojump_clock: MockClock) -> None:
    calls = [ToolCall("a", sleeps), ToolCall("b", at_once), ToolCall("c", sleeps)]
    with trio.move_on_after(1) as scope:
        async with run_tools(calls, limit=2) as run:
            async for _ in run:
                raise AssertionError
    assert scope.cancelled_caught
    assert kinds(run.results) == [("a", "cancelled"), ("b", "result"), ("c", "cancelled")]


@pytest.mark.trio_only("asyncio has no shields")
async def test_a_cancellation_from_outside_while_the_block_waits_for_tools_leaves_the_block(
    autojump_clock: MockClock,
) -> None:
    async def tool(emit: Emit) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        await trio.lowlevel.checkpoint()

    with trio.move_on_after(1) as scope:
        async with run_tools([ToolCall("a", tool)]) as run:
            await wait_all_tasks_blocked()
        raise AssertionError
    assert scope.cancelled_caught
    assert trio.current_time() == 2
    assert kinds(run.results) == [("a", "cancelled")]


async def test_a_run_does_not_keep_output_without_a_reader() -> None:
    class Output:
        pass

    kept: weakref.WeakSet[Output] = weakref.WeakSet()

    async def tool(emit: Emit) -> None:
        output = Output()
        kept.add(output)
        await emit(output)

    async with run_tools([ToolCall("a", tool)]) as run:
        await wait_all_tasks_blocked()
        assert len(kept) == 1
    gc.collect()
    assert len(kept) == 0
    assert kinds(run.results) == [("a", "result")]


async def test_a_failure_besides_a_cancellation_from_outside_stays_with_its_call(
    autojump_clock: MockClock,
) -> None:
    async def breaks(emit: Emit) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ToolError

    async def tool(emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeps, emit)
            nursery.start_soon(breaks, emit)

    with trio.move_on_after(1) as scope:
        async with run_tools([ToolCall("a", tool)]) as run:
            await anext(run)
    assert scope.cancelled_caught
    (result,) = run.results
    assert result.kind == "error"
    assert pytest.RaisesGroup(ToolError).matches(result.value)


@pytest.mark.trio_only("it is about checkpoints")
async def test_entering_is_no_checkpoint_and_leaving_is_always_one_pass_of_the_scheduler() -> None:
    class Steps(trio.abc.Instrument):
        count = 0

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    block, steps = run_tools([]), Steps()
    with assert_no_checkpoints():
        await block.__aenter__()
    trio.lowlevel.add_instrument(steps)
    await block.__aexit__(None, None, None)
    assert steps.count == 1


# ---- reading


@pytest.mark.parametrize("order", BOTH)
async def test_a_cancelled_read_loses_nothing(autojump_clock: MockClock, order: Order) -> None:
    calls = [ToolCall(str(n), says(*range(5), every=1)) for n in range(3)]
    events = []
    async with run_tools(calls, order=order, buffer=2) as run:
        while True:
            with trio.move_on_after(0.3):
                try:
                    events.append(await anext(run))
                except StopAsyncIteration:
                    break
    assert [event.sequence_number for event in events] == list(range(3 * 6))
    for n in range(3):
        mine = [event.data for event in events if event.output_index == n]
        assert mine == [0, 1, 2, 3, 4, "done"]


async def test_reading_is_a_checkpoint_also_when_there_is_something() -> None:
    async with run_tools([ToolCall("a", at_once)]) as run:
        await wait_all_tasks_blocked()
        with assert_checkpoints():
            await anext(run)
        with assert_checkpoints(), pytest.raises(StopAsyncIteration):
            await anext(run)
    with pytest.raises(StopAsyncIteration):
        await anext(run)


async def test_without_calls_there_is_nothing_to_hear() -> None:
    async with run_tools([]) as run:
        assert [event async for event in run] == []
    assert run.results == []


async def test_a_run_whose_block_was_left_cannot_be_read() -> None:
    async with run_tools([ToolCall("a", at_once), ToolCall("b", sleeps)]) as run:
        await wait_all_tasks_blocked()
    with pytest.raises(trio.ClosedResourceError):
        await anext(run)


async def test_who_reads_when_the_block_is_left_is_told(autojump_clock: MockClock) -> None:
    async def read(run: ToolRun) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await anext(run)

    async with trio.open_nursery() as nursery:
        async with run_tools([ToolCall("a", sleeps)]) as run:
            nursery.start_soon(read, run)
            await wait_all_tasks_blocked()


async def test_two_tasks_cannot_wait_for_the_next_event(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, run_tools([ToolCall("a", says(1))]) as run:

        async def read() -> None:
            assert (await anext(run)).data == 1

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(run)
        await trio.sleep(5)
        assert (await anext(run)).data == "done"


# ---- emitting


async def test_emitting_is_a_checkpoint_also_when_there_is_room() -> None:
    async def tool(emit: Emit) -> None:
        with assert_checkpoints():
            await emit(1)

    async with run_tools([ToolCall("a", tool)]) as run:
        events = [event async for event in run]
    assert [event.kind for event in events] == ["output", "result"]


@pytest.mark.parametrize("order", BOTH)
async def test_a_cancelled_emit_has_said_nothing(autojump_clock: MockClock, order: Order) -> None:
    async def tool(emit: Emit) -> None:
        await emit("first")
        with trio.move_on_after(1):
            await emit("never")
        with trio.CancelScope() as scope:
            scope.cancel()
            await emit("never either")
        await emit("last")

    async with run_tools([ToolCall("a", tool)], buffer=1, order=order) as run:
        await trio.sleep(2)
        events = [event async for event in run]
    assert [event.data for event in events] == ["first", "last", None]


@pytest.mark.parametrize("order", BOTH)
async def test_nothing_can_be_said_for_a_call_that_has_ended(
    autojump_clock: MockClock, order: Order
) -> None:
    said = []
    async with trio.open_nursery() as nursery:

        async def linger(emit: Emit) -> None:
            await emit("in time")
            with pytest.raises(trio.ClosedResourceError, match="'a' has ended"):
                await emit("waits for room until the call has ended")
            said.append("late")
            with pytest.raises(trio.ClosedResourceError, match="'a' has ended"):
                await emit("later still")
            said.append("later")

        async def tool(emit: Emit) -> None:
            nursery.start_soon(linger, emit)
            await trio.sleep(1)

        calls = [ToolCall("a", tool), ToolCall("b", says(1, 2, every=3))]
        async with run_tools(calls, buffer=1, order=order) as run:
            await trio.sleep(2)
            assert said == ["late", "later"]
            events = [event async for event in run]
    assert heard(events) == [("a", "in time"), ("a", None), ("b", 1), ("b", 2), ("b", "done")]


async def test_children_of_a_tool_may_emit_at_the_same_time(autojump_clock: MockClock) -> None:
    async def tool(emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(emit, n)

    async with run_tools([ToolCall("a", tool)], buffer=3) as run:
        events = [event async for event in run]
    assert sorted(event.data for event in events[:-1]) == list(range(20))
    assert events[-1].kind == "result"


# ---- cancelling one call


@pytest.mark.parametrize("order", BOTH)
async def test_cancelling_one_call_leaves_the_others_alone(
    autojump_clock: MockClock, order: Order
) -> None:
    calls = [ToolCall("a", says(1, every=5)), ToolCall("b", says(2, every=5))]
    async with run_tools(calls, order=order) as run:
        await trio.sleep(6)
        assert run.cancel("a", "too slow") is True
        events = [event async for event in run]
    of_a = [(event.kind, event.data) for event in events if event.item_id == "a"]
    assert of_a == [("output", 1), ("cancelled", "too slow")]
    assert run.results[0] == ToolResult("a", "cancelled", "too slow")
    assert run.results[1] == ToolResult("b", "result", "done")


async def test_a_waiting_call_that_is_cancelled_has_ended_at_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    calls = [
        ToolCall("a", track.tool("a"), serial_group=1),
        ToolCall("b", track.tool("b"), serial_group=1),
        ToolCall("c", track.tool("c"), serial_group=1),
    ]
    async with run_tools(calls) as run:
        await wait_all_tasks_blocked()
        assert run.cancel("b") is True
        assert kinds(run.results) == [("b", "cancelled")]
        assert track.running == {"a"}
        events = [event async for event in run]
    assert track.started == ["a", "c"]
    assert track.peak == 1
    assert [(event.item_id, event.kind) for event in events] == [
        ("a", "result"),
        ("b", "cancelled"),
        ("c", "result"),
    ]


async def test_a_call_that_waits_for_a_permit_can_be_cancelled_and_frees_its_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    calls = [
        ToolCall("a", track.tool("a", 5)),
        ToolCall("b", track.tool("b"), serial_group=1),
        ToolCall("c", track.tool("c"), serial_group=1),
        ToolCall("d", track.tool("d")),
    ]
    async with run_tools(calls, limit=1) as run:
        await wait_all_tasks_blocked()
        assert run.cancel("b")
        async for _ in run:
            pass
    assert track.started == ["a", "c", "d"]


@pytest.mark.many_seeds(5)
async def test_a_call_cancelled_before_its_first_step_is_not_called() -> None:
    async def never(emit: Emit) -> None:
        raise AssertionError

    async with run_tools([ToolCall("a", never)]) as run:
        assert run.cancel("a", "no") is True
        (event,) = [event async for event in run]
    assert (event.kind, event.data) == ("cancelled", "no")


async def test_a_cancelled_call_keeps_its_permit_and_place_until_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    calls = [
        ToolCall("a", returns_in_spite_of_all, serial_group=1),
        ToolCall("b", track.tool("b"), serial_group=1),
        ToolCall("c", track.tool("c")),
    ]
    async with run_tools(calls, limit=1) as run:
        await wait_all_tasks_blocked()
        assert run.cancel("a") is True
        await trio.sleep(1)
        assert track.started == []
        async for _ in run:
            pass
    assert track.started == ["b", "c"]
    assert kinds(run.results) == [("a", "result"), ("b", "result"), ("c", "result")]


async def test_the_first_reason_of_a_cancellation_stays(autojump_clock: MockClock) -> None:
    async with run_tools([ToolCall("a", sleeps)]) as run:
        await wait_all_tasks_blocked()
        assert run.cancel("a", "first")
        assert run.cancel("a", "second")
    assert run.results[0].value == "first"


async def test_cancelling_a_call_that_has_ended_is_false() -> None:
    async with run_tools([ToolCall("a", at_once)]) as run:
        async for _ in run:
            pass
        assert run.cancel("a") is False
    assert run.cancel("a") is False
    assert kinds(run.results) == [("a", "result")]


async def test_cancelling_a_call_that_does_not_exist_is_a_key_error() -> None:
    async with run_tools([]) as run:
        with pytest.raises(KeyError, match="unknown"):
            run.cancel("unknown")


# ---- context and bad input


async def test_no_call_inherits_the_context_of_the_call_before_it(
    autojump_clock: MockClock,
) -> None:
    var: ContextVar[str] = ContextVar("var", default="nothing")

    async def tool(emit: Emit) -> str:
        found = var.get()
        var.set("left behind")
        return found

    var.set("the caller's")
    async with run_tools([ToolCall(str(n), tool) for n in range(3)], limit=1) as run:
        async for _ in run:
            pass
    assert [result.value for result in run.results] == ["the caller's"] * 3


async def test_tools_belong_to_the_job_that_runs_them(autojump_clock: MockClock) -> None:
    async def tool(emit: Emit) -> object:
        return current_job()

    async def body() -> None:
        async with run_tools([ToolCall("a", tool)]) as run:
            async for _ in run:
                pass
        assert run.results[0].value is current_job()

    async with open_lanes() as lanes:
        await lanes.run(body)


@pytest.mark.trio_only("the tasks are Trio's")
async def test_the_task_of_a_call_has_its_name() -> None:
    async def tool(emit: Emit) -> str:
        return trio.lowlevel.current_task().name

    async with run_tools([ToolCall("a", tool, name="search"), ToolCall("b", tool)]) as run:
        async for _ in run:
            pass
    assert [result.value for result in run.results] == ["search", "b"]


async def test_repr_says_how_many_wait_run_and_have_ended(autojump_clock: MockClock) -> None:
    calls = [ToolCall("a", at_once), *(ToolCall(str(n), sleeps) for n in range(5))]
    async with run_tools(calls, limit=2) as run:
        await wait_all_tasks_blocked()
        assert "3 waiting, 2 running, 1 ended" in repr(run)


def test_two_calls_with_the_same_id_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="'a'"):
        run_tools([ToolCall("a", at_once), ToolCall("b", at_once), ToolCall("a", at_once)])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"limit": 0}, ValueError, "limit must be at least 1, got 0"),
        ({"limit": 1.5}, ValueError, "limit"),
        ({"limit": math.nan}, ValueError, "limit"),
        ({"limit": True}, TypeError, "limit"),
        ({"limit": "2"}, TypeError, "limit"),
        ({"buffer": -1}, ValueError, "buffer must not be negative, got -1"),
        ({"buffer": None}, TypeError, "buffer"),
        ({"order": "random"}, ValueError, "random"),
    ],
)
def test_a_bad_option_is_an_error_at_the_call(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_tools([], **options)


def test_an_object_of_another_type_is_a_type_error_at_the_call() -> None:
    with pytest.raises(TypeError, match="ToolCall"):
        run_tools([at_once])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("", at_once), {}, ValueError, "id"),
        ((5, at_once), {}, TypeError, "id"),
        (("a", "at_once"), {}, TypeError, "fn"),
        (("a", at_once), {"name": 5}, TypeError, "name"),
    ],
)
def test_a_bad_call_is_an_error_that_names_the_field(
    arguments: tuple[Any, Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ToolCall(*arguments, **options)
