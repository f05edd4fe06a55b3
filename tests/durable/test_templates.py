"""What a store keeps of lanes of templates that have no jobs any more: nothing, after a while."""

import sqlite3
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.durable.conformance.bench import Played
from trio_lanes import RateLimit, UnknownLaneError
from trio_lanes.durable import (
    DurableState,
    Finish,
    LaneLimit,
    MemoryStore,
    Opening,
    SqliteStore,
    Store,
    SubmittedJob,
    Succeeded,
    open_durable_lanes,
)
from trio_lanes.durable._contract.act import new_ticket
from trio_lanes.durable._memory.tables import MemoryTables
from trio_lanes.durable._rules.rates import meters_of, names_of
from trio_lanes.durable._rules.tables import FAIR_TURNS, HOLDS, LIMITS
from trio_lanes.durable.acts.inspection import Check
from trio_lanes.durable.acts.orders import Pause

LIMIT = LaneLimit(
    1,
    rates=(RateLimit(2, per=10.0), RateLimit(9, per=50.0, unit="a unit", algorithm="sliding")),
)
OPENING = Opening(
    names=frozenset({"echo"}),
    lanes={"main": LIMIT, "tenant:*": LIMIT},
    max_crashes=3,
    hold=False,
    result_ttl=1.0,
    lease_ttl=1e6,
    worker=True,
)


async def run_all(store: Played) -> None:
    """Run jobs of three priorities in lanes of tenants, until none is left."""
    jobs = [
        SubmittedJob(name="echo", lane=lane, priority=priority, cost={"requests": 1, "a unit": 2})
        for lane in ("main", "tenant:a", "tenant:b c")
        for priority in (1, 1, 0, -1)
    ]
    await store.enqueue(jobs)
    left, finished = len(jobs), []
    while left:
        step = await store.step(finished, 99)
        finished = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in step.claims]
        left -= len(finished)
        await trio.sleep(10.0)
    await store.step(finished, 0)
    await store.do(Pause("tenant:c", None, 5.0), new_ticket())


def opened(store: Store) -> AbstractAsyncContextManager[None]:
    return store.open(OPENING)


async def forget(store: Played) -> None:
    """Let the time pass after which two steps forget the lanes."""
    for _ in range(3):
        await trio.sleep(61.0)
        await store.step([], 9)


async def test_a_store_in_memory_forgets_lanes_without_jobs(autojump_clock: MockClock) -> None:
    memory = MemoryStore()
    tables: Any = memory._tables
    store = Played(memory)
    async with opened(memory):
        await store.join()
        await run_all(store)
        assert names_of("lane", tables.meters()) == {"main", "tenant:a", "tenant:b c"}
        assert len(tables.of(FAIR_TURNS)) > 5
        assert of_tenants(tables.of(HOLDS)) == ["tenant:a", "tenant:b c", "tenant:c"]
        assert sorted(tables.of(LIMITS)) == ["main", "tenant:*", "tenant:c"]
        await forget(store)
        assert list(tables.meters()) == []
        assert of_tenants(tables.of(FAIR_TURNS)) == []
        assert list(tables.of(HOLDS)) == ["main"]
        assert sorted(tables.of(LIMITS)) == ["main", "tenant:*"]


def of_tenants(turns: Collection[str]) -> list[str]:
    return [key for key in turns if "tenant" in key and key != "served"]


async def test_a_file_forgets_lanes_without_jobs(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "jobs.db"

    def ask(statement: str) -> set[Any]:
        connection = sqlite3.connect(path)
        found = {row[0] for row in connection.execute(statement)}
        connection.close()
        return found

    file = SqliteStore(path, synchronous="NORMAL")
    store = Played(file)
    async with opened(file):
        await store.join()
        await run_all(store)
        kept = {"main", "tenant:*"}  # of these the ends are counted
        lanes = ask("SELECT DISTINCT lane FROM counts")
        assert lanes == kept | {"tenant:a", "tenant:b c"}
        assert len(ask("SELECT meter FROM marks")) == 6
        await forget(store)
        assert ask("SELECT lane FROM counts") == kept
        assert ask("SELECT meter FROM marks") == set()
        assert (
            ask("SELECT name FROM settings WHERE kind = 'turn' AND name LIKE 'passed%tenant%'")
            == set()
        )
        assert ask("SELECT name FROM settings WHERE kind = 'hold'") == {"main"}
        assert ask("SELECT name FROM settings WHERE kind = 'lane'") == {"main", "tenant:*"}
        await run_all(store)
        assert (await file.look(Check())).problems == ()


@pytest.mark.parametrize("name", ["a", "a gcra 0", "a sliding 1 tokens", "lane", "two\nlines"])
def test_the_key_of_a_meter_names_its_lane(name: str) -> None:
    rates = (
        *(RateLimit(1), RateLimit(1, unit="gcra 0"), RateLimit(1, unit="0", algorithm="sliding")),
        *(RateLimit(1, per="day"), RateLimit(Decimal(1), per="month", unit="usd")),
    )
    meters = meters_of(MemoryTables(), f"lane {name}", rates)
    assert names_of("lane", [meter.key for meter in meters]) == {name}
    assert len({meter.key for meter in meters}) == 5


async def test_a_claim_passes_over_the_jobs_of_a_lane_that_is_gone(mock_clock: MockClock) -> None:
    memory = MemoryStore()
    tables: Any = memory._tables
    store = Played(memory)
    async with opened(memory):
        await store.join()
        await store.enqueue([SubmittedJob(name="echo", lane=lane) for lane in ("main", "tenant:a")])
        tables.put(LIMITS, "main", None)
        assert [claim.lane for claim in (await store.step([], 9)).claims] == ["tenant:a"]


async def test_jobs_of_a_lane_that_is_gone_are_a_problem_and_change_nothing_else(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path), {}, {"main": 1}, worker=False) as lanes:
        job = await lanes.submit("echo")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE settings SET name = 'other' WHERE kind = 'lane'")
    connection.commit()
    connection.close()
    async with open_durable_lanes(SqliteStore(path), {}, {}, worker=False) as lanes:
        (problem,) = (await lanes.check()).problems
        assert "for lane 'main', which is not in the store" in problem
        assert await lanes.blocked_by(job.id) == ()
        await lanes.configure({"other": None})
        assert (await lanes.statistics()).lanes == {}
        assert (await lanes.job(job.id).status()).state is DurableState.WAITING
        with pytest.raises(UnknownLaneError):
            await lanes.clear("main")


async def test_a_pause_of_a_lane_of_a_template_holds_when_the_lane_gets_its_own_limits(
    mock_clock: MockClock,
) -> None:
    memory = MemoryStore()
    async with open_durable_lanes(memory, {}, {"tenant:*": 1}, worker=False) as lanes:
        await lanes.pause("tenant:a")
        await lanes.pause("tenant:b")
        await lanes.configure({"tenant:a": 3})
        assert (await lanes.statistics()).lanes["tenant:a"].paused
        limits = {"tenant:b": 2}
        async with open_durable_lanes(memory.another(), {}, limits, worker=False):
            found = (await lanes.statistics()).lanes["tenant:b"]
            assert (found.paused, found.concurrency) == (True, 2)
        await lanes.pause("tenant:c")
        await lanes.configure({"tenant:*": None})
        assert sorted(await lanes.limits()) == ["tenant:a", "tenant:b"]
        assert sorted((await lanes.statistics()).lanes) == ["tenant:a", "tenant:b"]
