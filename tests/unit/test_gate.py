"""Where a task of Trio's waits for an end in asyncio."""

import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from trio_lanes.aio._bridge import Gate


async def test_a_task_waits_at_a_gate_until_it_is_open() -> None:
    gate = Gate()
    passed: list[bool] = []

    async def wait() -> None:
        await gate.wait()
        passed.append(gate.is_open)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert passed == []
        gate.open()
    assert passed == [True]
    with assert_checkpoints():
        await gate.wait()


async def test_the_cancellation_of_a_wait_at_a_gate_is_told_at_once() -> None:
    gate = Gate()
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.wait, lambda: told.append("cancelled"))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        assert told == ["cancelled"]
        gate.open()  # nobody waits
