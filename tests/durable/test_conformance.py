"""Every store of this library, in the conformance suite that every other store can run too."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from trio.testing import MockClock

from trio_lanes.durable import MemoryStore, SqliteStore
from trio_lanes.testing import durable_store_suite


def memory() -> Callable[[Path], MemoryStore]:
    first: dict[Path, MemoryStore] = {}

    def make(folder: Path) -> MemoryStore:
        if folder in first:
            return first[folder].another()
        return first.setdefault(folder, MemoryStore())

    return make


def sqlite(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "jobs.db", synchronous="NORMAL")


TestMemoryStore = durable_store_suite(memory(), clock=MockClock)
TestSqliteStore = durable_store_suite(sqlite, clock=MockClock)

# In real time the whole takes half a minute for each store; a few of them are always run.
in_real_time = [durable_store_suite(memory()), durable_store_suite(sqlite)]
if os.environ.get("TRIO_LANES_LONG_TESTS"):
    TestMemoryStoreInRealTime, TestSqliteStoreInRealTime = in_real_time


@pytest.mark.parametrize("suite", in_real_time, ids=["memory", "sqlite"])
@pytest.mark.parametrize(
    "name",
    [
        "test_a_smoothed_rate_spreads_starts_after_its_burst",
        "test_what_ran_in_a_crash_goes_before_what_waited",
    ],
)
def test_the_suite_also_runs_in_real_time(suite: type, name: str) -> None:
    getattr(suite(), name)()


def test_a_store_that_breaks_a_rule_fails_the_suite() -> None:
    suite = durable_store_suite(lambda folder: SqliteStore(folder / "jobs.db", max_payload=9))
    with pytest.RaisesGroup(
        pytest.RaisesExc(Exception), flatten_subgroups=True, allow_unwrapped=True
    ):
        suite().test_a_job_runs_and_everybody_gets_its_result()
