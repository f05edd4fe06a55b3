"""Clusters of instances in one Trio run, over faulty connections, and two that play the same."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.durable.conformance.stores import memory, sqlite, storage
from tests.durable.conformance.twins import compare_stores
from tests.durable.in_loop import in_loop, over_storage, served_sqlite
from tests.durable.planted import FAULTS
from tests.support.chaos import number, times
from tests.support.fresh import SEED
from trio_lanes.durable import (
    CheckReport,
    DurableState,
    JobDeadError,
    JobExpiredError,
    MemoryStore,
)
from trio_lanes.durable.acts.inspection import Check, JobsOf
from trio_lanes.durable.testing import (
    NO_FAULTS,
    Faults,
    Life,
    _life,
    open_cluster,
    shrink,
    simulate,
)


@pytest.mark.parametrize("seed", [*range(8), 1031, 3_006_024])
def test_nothing_is_wrong_in_a_life(seed: int) -> None:
    assert simulate(Life(seed)) == []


def test_a_run_that_is_given_up_ends_after_one_call_of_the_store_and_takes_no_slot_back() -> None:
    faults = attrs.evolve(Faults(), doubled=0, kills=math.inf)
    for life in (Life(1109), Life(1, orders=0, faults=faults)):
        assert simulate(life) == []


@pytest.mark.seeds(3)
def test_nothing_is_wrong_in_a_life_on_a_served_file(seed: int) -> None:
    with in_loop():
        assert simulate(Life(seed), served_sqlite) == []


@pytest.mark.seeds(6)
def test_nothing_is_wrong_in_a_life_over_a_storage(seed: int) -> None:
    with in_loop():
        assert simulate(Life(seed), over_storage) == []


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_wrong_where_half_of_all_messages_are_lost(seed: int) -> None:
    assert simulate(Life(seed, jobs=12, orders=6, faults=attrs.evolve(NO_FAULTS, lost=0.5))) == []


@pytest.mark.slow
@pytest.mark.real_processes
def test_nothing_is_wrong_in_sixty_more_lives(pytestconfig: pytest.Config) -> None:
    """In processes of their own, where no coverage is measured: `make chaos` has two."""
    count = number("LIVES_PROCESSES", 1)
    each = number("LIVES", times(60)) // count
    command = [sys.executable, "-m", "tests.durable.lives"]
    # in CI one that was never played, which the header of the output names
    firsts = (pytestconfig.stash.get(SEED, 1_000), 1_000_000)
    processes = [
        subprocess.Popen([*command, f"{first}", f"{each}"], stdout=subprocess.PIPE, text=True)
        for first in firsts[:count]
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert "".join(outputs) == ""
    assert [process.returncode for process in processes] == [0] * count


def test_the_same_life_is_the_same_every_time() -> None:
    with FAULTS["a lane has one slot too many"][1]():
        life, first = next(
            (life, found) for life in map(Life, range(20)) if (found := simulate(life))
        )
        assert simulate(life) == first


def test_a_life_that_goes_wrong_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(life: Life) -> list[str]:
        return ["wrong"] if life.jobs >= 3 and life.faults.kills < math.inf else []

    monkeypatch.setattr("trio_lanes.durable.testing._life.simulate", wrong)
    smallest = shrink(Life(7))
    assert attrs.evolve(smallest, seed=7) == Life(
        7,
        jobs=3,
        faults=attrs.evolve(NO_FAULTS, kills=Faults().kills),
        instances=1,
        orders=0,
    )
    for fine in (Life(7, jobs=2), Life(7, jobs=1)):
        assert shrink(fine) == fine


async def test_a_life_reports_a_broken_rule(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = _life._Story(Life(1))

    class Nothing:
        trusted_from = -math.inf

    @attrs.define
    class Run:
        _given_up = False
        id: int
        fence: int
        session: str = "s"
        lane: str = "main"

    @attrs.define
    class Ended:
        id: int
        answer: Any

        async def wait(self) -> Any:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    cluster: Any = Nothing()
    story.cluster = cluster
    story.places = {1: 1, 2: 2}
    for run in (Run(2, 5), Run(1, 4)):
        monkeypatch.setattr(_life, "current_job", lambda run=run: run)
        with story.body():
            pass
    with ExitStack() as bodies:
        for run in (Run(3, 6), Run(4, 7)):
            monkeypatch.setattr(_life, "current_job", lambda run=run: run)
            bodies.enter_context(story.body())
    await _life._check_end(story, Ended(3, JobDeadError("ValueError", "no")), 3)
    await _life._check_end(story, Ended(4, 5), 4)
    await _life._check_end(story, Ended(4, JobExpiredError(4)), 4)
    for used, granted in ((8, 0), (7, 1), (7, 0)):  # too much, a grant of none, and all is well
        story.check_budget(used, granted)
        story.spent = 7
    story.refused = {"key 5"}
    for key in ("key 4", "key 5"):
        story.check_refused(
            [SimpleNamespace(id=9, key=key, state=DurableState.DEAD)]  # type: ignore[list-item]
        )
    found = "; ".join(story.wrong)
    assert found.count("of the budget are used") == 2
    for what in (
        "the fence 4 of job 1 does not rise",
        "job 1 begins after a later job",
        "job 4 (fence 7) overlaps job 3 (fence 6)",
        "job 3 is dead: ValueError: no",
        "job 9 was refused, and is dead",
        "job 4 has the result 5 of another job, not 4",
        "job 4 expired, and has run",
    ):
        assert what in found


@pytest.mark.parametrize("seed", range(12))
def test_the_store_in_memory_and_sqlite_answer_the_same(seed: int) -> None:
    assert compare_stores(memory(), sqlite, seed=seed) == []


@pytest.mark.parametrize("seed", range(6))
def test_the_store_in_memory_and_that_over_a_storage_answer_the_same(seed: int) -> None:
    assert compare_stores(memory(), storage(), seed=seed) == []


def test_a_comparison_says_where_two_stores_differ() -> None:
    class Empty(MemoryStore):
        async def look(self, question: Any) -> Any:
            return [] if isinstance(question, JobsOf) else await super().look(question)

    different, *_ = compare_stores(memory(), lambda folder: Empty(), seed=0)
    assert different.startswith("after 2 acts, jobs: ")


def test_a_comparison_names_what_a_check_finds_in_both_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(question: Check, queues: object) -> CheckReport:
        return CheckReport(("a slot is held by no run",), 0)

    monkeypatch.setattr(Check, "answer", answer)
    assert "check: ('a slot is held by no run',)" in compare_stores(memory(), memory(), seed=0)


async def test_a_cluster_runs_the_handlers_of_a_user(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Any] = []

    async def answer(payload: Any) -> Any:
        await trio.sleep(1)
        sent.append(payload)
        return payload

    handlers = {"answer": answer}
    async with open_cluster(handlers, {"main": 4}, seed=7, faults=Faults(kills=20)) as cluster:
        jobs = [
            await cluster.lanes.submit("answer", n, session=f"{n % 3}", key=f"{n}")
            for n in range(20)
        ]
        await trio.sleep(60)
        cluster.end_faults()
        for n, job in enumerate(jobs):
            assert await job.wait() == n
        assert (await cluster.lanes.check()).problems == ()
    assert set(sent) == set(range(20))
    assert "could not sign off from its store: StoreUnavailableError(" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.slow
@pytest.mark.no_cover  # dear, and about the faults alone
@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_that_is_put_in_is_found(what: str) -> None:
    layer, patch = FAULTS[what]
    with patch():
        assert layer()


def test_the_docs_list_the_faults_that_are_put_in() -> None:
    page = Path(__file__).parents[2] / "docs" / "design-durable.md"
    text = page.read_text("utf-8")
    assert [what for what in FAULTS if f"| {what} |" not in text] == []
