"""The quotas and lanes of very many tenants, and quotas through the door for asyncio."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import LaneInstrument, RateLimit, aio
from trio_lanes.durable import (
    BudgetSpentError,
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
from trio_lanes.durable.acts.jobs import Enqueue

QUOTAS = {"tenant:*": RateLimit(90, per=1e5, unit="tokens", algorithm="sliding")}
STEP = 10
"""Instructions of SQLite's machine between two counts."""


class Low(LaneInstrument):
    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def quota_low(self, quota: str, unit: str) -> None:
        self.found.append((quota, unit))
        if quota == "tenant:bad":
            raise ValueError


@pytest.mark.asyncio_only
async def test_a_quota_has_its_verbs_through_the_door_for_asyncio() -> None:
    low = Low()
    options: Any = {"quotas": QUOTAS, "instruments": [low]}
    async with aio.open_durable_lanes(MemoryStore(), {}, **options) as lanes:
        quota = lanes.quota("tenant:1")
        spent = await asyncio.create_task(quota.spend(tokens=80))
        with pytest.raises(BudgetSpentError) as refused:
            await quota.spend(tokens=20, wait=False)
        await spent.settle(tokens=70)
        assert (refused.value.left, await quota.left()) == ({"tokens": 10}, {"tokens": 20})
    assert low.found == [("tenant:1", "tokens")]


async def test_an_instrument_hears_once_in_a_window_that_80_percent_of_a_quota_are_used(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, low, other = MemoryStore(), Low(), Low()
    options: Any = {"quotas": QUOTAS, "lease_ttl": 3600}  # some 80 heartbeats in the window
    async with (
        open_durable_lanes(store, {}, instruments=[low], **options) as lanes,
        open_durable_lanes(store.another(), {}, instruments=[other], **options) as others,
    ):
        spent = await lanes.quota("tenant:1").spend(tokens=50)
        await others.quota("tenant:2").spend(tokens=50)
        assert low.found == other.found == []
        await spent.settle(tokens=72)
        await others.quota("tenant:1").spend(tokens=5)
        assert (low.found, other.found) == ([("tenant:1", "tokens")], [])
        await trio.sleep(1e5 + 1)
        await others.quota("tenant:1").spend(tokens=80)
        assert (len(low.found), other.found) == (1, [("tenant:1", "tokens")])
        await lanes.quota("tenant:bad").spend(tokens=80)
        await lanes.quota("tenant:3").spend(tokens=80)
        assert low.found[1:] == [("tenant:bad", "tokens")]  # it has raised, and is removed
    said = [one.getMessage() for one in caplog.records if "80 %" in one.getMessage()]
    assert len(said) == 4


ONCE = (RateLimit(1, per=1e6, algorithm="sliding"),)
OPENING = Opening(
    names=frozenset({"a"}),
    lanes={"tenant:*": LaneLimit(2), "held:*": LaneLimit(2, rates=ONCE), "main": LaneLimit(1)},
    max_crashes=3,
    hold=False,
    result_ttl=100.0,
    lease_ttl=3600.0,
    worker=True,
)


async def claim_in_many_lanes(store: Store, lanes: int, count: Callable[[], int]) -> int:
    """Return by how much a count grows while 60 jobs are claimed in lanes with a job each."""
    await store.join("me")
    for first in range(0, lanes, 100):
        some = range(first, first + 100)
        jobs = [SubmittedJob(name="a", lane=f"tenant:{n}") for n in some]
        await store.do(Enqueue(jobs), f"t{first}")
    claims = (await store.step(1, [], 10)).claims
    before = count()
    for number in range(2, 8):
        ends = [Finish(claim.id, claim.fence, Succeeded("1")) for claim in claims]
        claims = (await store.step(number, ends, 10)).claims
        assert len({claim.lane for claim in claims}) == 10
    return count() - before


async def step_beside_held_lanes(store: Store, lanes: int, count: Callable[[], int]) -> int:
    """Return by how much a count grows in ten steps while rates hold many lanes with jobs."""
    await store.join("me")
    for first in range(0, lanes, 100):
        some = range(first, first + 100)
        jobs = [SubmittedJob(name="a", lane=f"held:{n}") for n in some for _ in range(2)]
        await store.do(Enqueue(jobs), f"t{first}")
    claimed, number = 0, 0
    while claimed < lanes:
        number += 1
        claimed += len((await store.step(number, [], 100)).claims)
    await store.step(number + 1, [], 5)
    before = count()
    for n in range(10):
        await store.do(Enqueue([SubmittedJob(name="other", lane="main")]), f"m{n}")
        assert not (await store.step(number + 2 + n, [], 5)).claims
    return count() - before


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number that grows with each `STEP` instructions of SQLite's machine."""
    counts = [0]
    connect = sqlite3.connect

    def count() -> None:
        counts[0] += 1

    def counting(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_progress_handler(count, STEP)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counting)
    return counts


@pytest.mark.slow
@pytest.mark.real_processes
async def test_a_spend_looks_at_as_much_with_4000_tenants_as_with_100(
    tmp_path: Path, instructions: list[int]
) -> None:
    async def spends(tenants: int) -> int:
        store = SqliteStore(tmp_path / f"{tenants}.db", synchronous="NORMAL")
        async with open_durable_lanes(store, {}, quotas=QUOTAS) as lanes:
            for first in range(0, tenants, 100):
                async with trio.open_nursery() as nursery:
                    for n in range(first, first + 100):
                        quota = lanes.quota(f"tenant:{n}")
                        nursery.start_soon(partial(quota.spend, tokens=1))
            instructions[0] = 0
            for n in range(40):
                await lanes.quota(f"tenant:{n * tenants // 40}").spend(tokens=1)
            return instructions[0]

    few, many = await spends(100), await spends(4_000)
    assert few > 0
    assert many <= 1.2 * few


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.parametrize(
    ("play", "most"), [(claim_in_many_lanes, 4_000), (step_beside_held_lanes, 1_000)]
)
async def test_a_claim_looks_at_as_much_with_very_many_lanes_that_wait_as_with_100(
    play: Callable[[Store, int, Callable[[], int]], Awaitable[int]],
    most: int,
    tmp_path: Path,
    instructions: list[int],
) -> None:
    calls = [0]

    def count(frame: Any, event: str, of: Any) -> None:
        calls[0] += event == "call"

    threading.setprofile(count)  # of threads that begin now: that of the file

    async def claims(lanes: int) -> int:
        store = SqliteStore(tmp_path / f"{lanes}.db", synchronous="NORMAL")
        async with store.open(OPENING):
            return await play(store, lanes, lambda: instructions[0] + calls[0])

    try:
        few, many = await claims(100), await claims(most)
    finally:
        threading.setprofile(None)
    assert few > 0
    assert many <= 1.2 * few
