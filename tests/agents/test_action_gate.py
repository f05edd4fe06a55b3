"""ActionGate: all answers at once, or none."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from trio_lanes import current_job, open_lanes
from trio_lanes.agents import ActionGate, Emit, ToolCall, ToolResult

pytestmark = pytest.mark.both_doors


async def tool(emit: Emit) -> None: ...


async def test_wait_gives_a_result_for_each_call_in_call_order() -> None:
    gate = ActionGate(["a", "b"])
    results: list[list[ToolResult]] = []

    async def wait() -> None:
        results.append(await gate.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert results == []
        gate.submit({"b": 2, "a": 1})
    assert results == [[ToolResult("a", "result", 1), ToolResult("b", "result", 2)]] * 2
    with assert_checkpoints():
        assert await gate.wait() == results[0]


def test_calls_may_be_tools_or_what_a_model_sent_or_ids() -> None:
    gate = ActionGate([ToolCall("a", tool), {"id": "b", "name": "search"}, "c"])
    assert gate.missing == ("a", "b", "c")


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, "missing: 'a', 'b', 'c'$"),
        ({"a": 1, "c": 1}, "missing: 'b'$"),
        ({"a": 1, "b": 1, "c": 1, "x": 1, "y": 1}, "unknown: 'x', 'y'$"),
        ({"a": 1, "x": 1}, "unknown: 'x'; missing: 'b', 'c'$"),
    ],
)
async def test_outputs_that_are_not_those_of_all_calls_are_refused_and_nothing_is_taken(
    outputs: dict[str, Any], words: str
) -> None:
    gate = ActionGate(["a", "b", "c"])
    with pytest.raises(ValueError, match=words):
        gate.submit(outputs)
    assert gate.missing == ("a", "b", "c")
    gate.submit(dict.fromkeys("abc", "ok"))
    assert [result.value for result in await gate.wait()] == ["ok"] * 3


async def test_a_call_is_answered_once() -> None:
    gate = ActionGate(["a", "b"])
    gate.submit({"a": 1, "b": 2})
    with pytest.raises(ValueError, match=r"repeated: 'a', 'b'$"):
        gate.submit({"a": 3, "b": 4})
    with pytest.raises(ValueError, match=r"unknown: 'x'; repeated: 'b'$"):
        gate.submit({"b": 5, "x": 6})
    assert [result.value for result in await gate.wait()] == [1, 2]


async def test_a_cancelled_gate_gives_cancelled_results_with_the_reason() -> None:
    gate = ActionGate(["a", "b"])
    assert gate.cancel("the user has left") is True
    assert gate.cancel("too late") is False
    assert await gate.wait() == [
        ToolResult("a", "cancelled", "the user has left"),
        ToolResult("b", "cancelled", "the user has left"),
    ]
    with pytest.raises(ValueError, match="repeated: 'a', 'b'"):
        gate.submit({"a": 1, "b": 2})


async def test_an_answered_gate_cannot_be_cancelled() -> None:
    gate = ActionGate(["a"])
    gate.submit({"a": 1})
    assert gate.cancel() is False
    assert await gate.wait() == [ToolResult("a", "result", 1)]


async def test_cancelling_who_waits_leaves_the_gate_as_it_is(autojump_clock: MockClock) -> None:
    gate = ActionGate(["a"])
    with trio.move_on_after(1) as scope:
        await gate.wait()
    assert scope.cancelled_caught
    assert gate.missing == ("a",)
    gate.submit({"a": 1})
    assert len(await gate.wait()) == 1


async def test_a_job_that_waits_on_it_lends_its_slot_and_keeps_its_place_in_the_session(
    autojump_clock: MockClock,
) -> None:
    gate = ActionGate(["a"])
    order: list[str] = []

    async def turn() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            (result,) = await gate.wait()
        order.append(result.value)

    async def say(what: str) -> None:
        order.append(what)

    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(turn, session="alice")
        lanes.start_soon(say, "alice's next turn", session="alice")
        lanes.start_soon(say, "bob's turn", session="bob")
        await trio.sleep(1)
        assert order == ["bob's turn"]
        gate.submit({"a": "allowed"})
    assert order == ["bob's turn", "allowed", "alice's next turn"]


async def test_a_gate_without_calls_is_open() -> None:
    gate = ActionGate([])
    gate.submit({})
    assert await gate.wait() == []
    assert gate.cancel() is False


async def test_what_a_waiter_does_to_its_list_is_its_own_affair() -> None:
    gate = ActionGate(["a"])
    gate.submit({"a": 1})
    (await gate.wait()).clear()
    assert len(await gate.wait()) == 1


def test_repr_says_what_is_missing() -> None:
    gate = ActionGate(["a", "b"])
    assert "ActionGate" in repr(gate)
    assert "waits for 'a', 'b'" in repr(gate)
    gate.cancel()
    assert "open" in repr(gate)


@pytest.mark.parametrize(
    ("calls", "error", "words"),
    [
        (["a", "b", "a", "b"], ValueError, "repeated: 'a', 'b'"),
        ([""], ValueError, "not empty"),
        ([{"id": ""}], ValueError, "not empty"),
        ([{"name": "search"}], TypeError, "search"),
        ([5], TypeError, "5"),
        ([{"id": 5}], TypeError, "5"),
    ],
)
def test_a_bad_call_is_an_error_that_names_it(
    calls: list[Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ActionGate(calls)
