"""What a durable job costs, in counts that do not depend on the machine: two sizes compared.

How many calls a job takes is printed by `python -m benchmarks.steps`, and no test fails for it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.calls import Calls
from trio_lanes.durable import MemoryStore, SqliteStore, Store, Submission, open_durable_lanes
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.claims import Claims


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


async def test_a_claim_reads_its_figures_once_however_many_lanes_have_jobs(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def counted(read: str) -> None:
        def count(*args: Any) -> Any:
            reads[-1][read] += 1
            return before(*args)

        before = getattr(MemoryTables, read)
        monkeypatch.setattr(MemoryTables, read, count)

    def take(self: Claims, instance: str, room: int) -> Any:
        reads.append(Counter())
        claims = before(self, instance, room)
        lanes.append(len({claim.lane for claim in claims}))
        reads.append(Counter())
        return claims

    before, reads, lanes = Claims.take, [Counter[str]()], list[int]()
    for read in ("counts", "runs"):
        counted(read)
    names = [f"lane {n}" for n in range(20)]
    async with open_durable_lanes(
        MemoryStore(), {"returns": returns}, dict.fromkeys(names, 1)
    ) as durable:
        jobs = [Submission(name="returns", payload=1, lane=name) for name in names]
        monkeypatch.setattr(Claims, "take", take)
        for job in await durable.submit_many(jobs):
            await job.wait()
    assert sum(lanes) == 20  # lanes of which a job was claimed, in all claims
    assert max(lanes) > 1
    assert max(max(read.values(), default=0) for read in reads[1::2]) == 1
