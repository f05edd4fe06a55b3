"""Fair lanes with very many owners: what their turns cost, and what is kept of them."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

from tests.durable.conformance.bench import RETURNED, Bench, ends, new_job
from trio_lanes.durable import LaneLimit, SqliteStore

FAIR = LaneLimit(1_000_000, fair=True, weights={"owner 1": 3, "owner 5*": 2})
MANY = 10_000


async def seconds_of_steps(
    store: Callable[[Path], SqliteStore], folder: Path, owners: int
) -> float:
    """Return how long 40 steps take, each of which ends two jobs and claims two."""
    async with Bench(store, folder, None).playing(lanes={"main": FAIR}) as played:
        for begin in range(0, owners, 500):
            numbers = range(begin, min(owners, begin + 500))
            await played.enqueue([new_job(n, owner=f"owner {n}") for n in numbers for _ in "12"])
        runs = await played.claim(2)
        began = time.process_time()
        for _ in range(40):
            runs = (await played.step(ends(RETURNED, *runs), 2)).claims
            assert len(runs) == 2
        return time.process_time() - began


@pytest.mark.slow
def test_a_claim_costs_the_same_with_ten_thousand_owners(tmp_path: Path) -> None:
    def store(folder: Path) -> SqliteStore:
        return SqliteStore(f"{folder}.db")

    few = trio.run(seconds_of_steps, store, tmp_path / "few", 100)
    many = trio.run(seconds_of_steps, store, tmp_path / "many", MANY)
    assert many < 4 * few  # a scan of the owners would take a hundred times as long


async def test_nothing_is_kept_of_owners_without_waiting_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with Bench(lambda _: SqliteStore(path), tmp_path, None).playing(
        lanes={"main": FAIR}
    ) as played:
        await played.enqueue([new_job(n, owner=f"owner {n % 9}") for n in range(40)])

        def kept() -> tuple[int, int]:
            with closing(sqlite3.connect(path)) as file:
                (parties,) = file.execute("SELECT count(*) FROM jobs WHERE party <> ''").fetchone()
                share = "SELECT count(*) FROM settings WHERE kind = 'share'"
                return parties, file.execute(share).fetchone()[0]

        assert kept() == (40, 1)
        assert len(await played.claim(40)) == 40
        assert kept() == (0, 0)
