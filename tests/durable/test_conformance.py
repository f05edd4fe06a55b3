"""Every store of this library, in the conformance suite that every other store can run too."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from tests.durable.conformance.bench import LEASE, Bench, new_job
from tests.durable.conformance.suite import durable_store_suite
from tests.support.programs import PATIENCE
from trio_lanes.durable import MemoryStore, SqliteStore


def memory() -> Callable[[Path], MemoryStore]:
    first: dict[Path, MemoryStore] = {}

    def make(folder: Path) -> MemoryStore:
        if folder in first:
            return first[folder].another()
        return first.setdefault(folder, MemoryStore())

    return make


def sqlite(folder: Path) -> SqliteStore:
    # a busy machine may need longer than a program would wait
    return SqliteStore(folder / "jobs.db", synchronous="NORMAL", patience=PATIENCE)


TestMemoryStore = durable_store_suite(memory(), clock=MockClock)
TestSqliteStore = durable_store_suite(sqlite, clock=MockClock)

# In real time the whole takes half a minute for each store, and a machine that stands still for a
# second fails some of it; a few that it cannot fail are always run.
in_real_time = [durable_store_suite(memory()), durable_store_suite(sqlite)]
if os.environ.get("TRIO_LANES_LONG_TESTS"):
    TestMemoryStoreInRealTime, TestSqliteStoreInRealTime = in_real_time


@pytest.mark.parametrize("suite", in_real_time, ids=["memory", "sqlite"])
@pytest.mark.parametrize(
    "name",
    [
        "test_clear_takes_jobs_that_have_not_started_and_leaves_those_that_run",
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
        # these need virtual time, and do nothing without
        "test_a_part_of_a_start_is_still_in_use_when_its_rate_is_replaced",
        "test_each_second_of_a_wait_in_a_lane_has_the_cause_that_it_had_then",
        "test_the_causes_of_a_lane_are_kept_for_so_many_changes",
        "test_a_timed_pause_of_a_lane_of_a_template_outlasts_the_clean_up",
        "test_it_is_a_problem_that_a_job_waits_though_nothing_holds_it",
        "test_it_is_a_problem_that_a_store_answers_slowly",
        "test_it_is_a_problem_that_no_instance_has_a_handler",
        "test_it_is_a_problem_that_no_instance_has_room_for_a_job",
        "test_it_is_a_problem_that_nothing_serves_a_lane",
        "test_the_cause_is_a_body_that_outlives_its_timeout_or_its_cancellation",
        "test_random_spends_settles_and_crashes_admit_no_more_than_the_cap",
        "test_the_verdict_says_of_how_many_lanes_it_does_not_speak",
        # and these do half of what they do
        "test_a_budget_is_low_once_in_its_window_when_80_percent_are_used",
        "test_a_session_stays_for_a_while_where_its_last_job_ran",
        "test_lanes_in_which_each_wait_can_end_are_healthy",
        "test_of_many_lanes_that_cannot_start_a_job_each_starts_one_when_it_can",
        "test_the_status_says_where_the_wait_went",
        "test_what_a_person_grants_can_be_spent_until_the_window_has_passed",
        "test_what_is_above_the_limit_of_a_day_may_be_spent_on_the_next",
    ],
)
def test_the_suite_also_runs_in_real_time(suite: type, name: str) -> None:
    getattr(suite(), name)()


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
    suite = durable_store_suite(lambda folder: SqliteStore(folder / "jobs.db", max_payload=9))
    with pytest.RaisesGroup(
        pytest.RaisesExc(Exception), flatten_subgroups=True, allow_unwrapped=True
    ):
        suite().test_a_job_runs_and_every_waiting_task_gets_its_result()
