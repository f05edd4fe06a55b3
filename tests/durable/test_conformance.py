"""The stores that need no server, in the conformance suite."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from tests.durable.conformance.bench import LEASE, Bench, new_job
from tests.durable.conformance.stores import memory, sqlite, storage
from tests.durable.conformance.suite import durable_store_suite, play
from trio_lanes.durable import MemoryStore, SqliteStore

TestMemoryStore = durable_store_suite(memory(), clock=MockClock)
TestSqliteStore = durable_store_suite(sqlite, clock=MockClock)
TestStorageStore = durable_store_suite(storage(), clock=MockClock)

# In real time the whole takes half a minute for each store, and a machine that stands still for a
# second fails some of it; a few that it cannot fail are always run.
if os.environ.get("TRIO_LANES_LONG_TESTS"):
    TestMemoryStoreInRealTime = durable_store_suite(memory())
    TestSqliteStoreInRealTime = durable_store_suite(sqlite)


@pytest.mark.parametrize("make", [memory(), sqlite, storage()], ids=["memory", "sqlite", "storage"])
@pytest.mark.parametrize(
    "name",
    [
        "test_clear_takes_jobs_that_have_not_started_and_leaves_those_that_run",
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
    ],
)
def test_the_suite_also_runs_in_real_time(make: Callable[[Path], Any], name: str) -> None:
    assert play(name, make) == []


async def test_an_instance_that_a_story_lets_die_claims_before_on_a_slow_machine_too(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    slow = iter([True, True, False, False])

    class Slow:
        def __init__(self, store: MemoryStore) -> None:
            self._inner = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def join(self, *args: Any) -> None:
            await self._inner.join(*args)
            if next(slow):
                mock_clock.jump(LEASE)

    store: Any = Slow(MemoryStore())
    bench = Bench(lambda folder: store, tmp_path, mock_clock)
    async with bench.doomed(new_job("x")) as claims:
        assert [(claim.payload, claim.crashes) for claim in claims] == [('"x"', 0)]
    async with bench.doomed(names=["gate"]) as claims:  # who has nothing to claim is no slow one
        assert claims == []


def test_a_store_that_breaks_a_rule_fails_the_suite() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(Exception), flatten_subgroups=True, allow_unwrapped=True
    ):
        play(
            "test_a_job_runs_and_every_waiting_task_gets_its_result",
            lambda folder: SqliteStore(folder / "jobs.db", max_payload=9),
        )
