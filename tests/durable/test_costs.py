"""What a durable job costs, in counts that do not depend on the machine: two sizes compared.

How many calls a job takes is printed by `python -m benchmarks.steps`, and no test fails for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.calls import Calls
from trio_lanes.durable import MemoryStore, SqliteStore, Store, Submission, open_durable_lanes


async def returns(payload: object) -> object:
    return payload


async def calls_of_a_job(store: Store, waiting: int) -> int:
    """How many calls of the library a job takes, beside so many that wait in another lane."""
    async with open_durable_lanes(store, {"returns": returns}, {"main": 4, "other": 1}) as lanes:
        await lanes.pause("other")
        others = [Submission(name="returns", payload=n, lane="other") for n in range(waiting)]
        await lanes.submit_many(others)
        await (await lanes.submit("returns", {"a": 1}, session="alice")).wait()
        await trio.sleep(1)  # the step that ends the first is over
        with Calls() as calls:
            job = await lanes.submit("returns", {"a": 1}, session="alice")
            assert await job.wait() == {"a": 1}
    return calls.count


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_durable_job_takes_as_many_calls_beside_many_that_wait_as_beside_few(
    kind: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    few, many = [
        await calls_of_a_job(
            MemoryStore() if kind == "memory" else SqliteStore(tmp_path / f"{waiting}.db"), waiting
        )
        for waiting in (10, 400)
    ]
    assert many <= 1.3 * few  # forty times as many wait
