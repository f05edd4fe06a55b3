"""How many steps a worker takes over a file, and what they write."""

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.conformance.bench import opening
from tests.support.programs import PATIENCE
from trio_lanes.durable import Finish, MemoryStore, SqliteStore, Step, open_durable_lanes


async def test_submissions_of_one_transaction_need_the_step_that_claims_them_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    # a clock that stands still: a worker also looks now and then, and a machine may be slow
    store = SqliteStore(tmp_path / "jobs.db", patience=PATIENCE)
    all_run, over = trio.Event(), trio.Event()
    writer_waits, writer_goes_on = threading.Event(), threading.Event()
    running: list[Any] = []
    asked: list[tuple[int, int]] = []  # how many ends, how much room

    async def held(n: int) -> None:
        running.append(n)
        if len(running) == 3:
            all_run.set()
        await over.wait()

    async def echo(payload: Any) -> Any:
        return payload

    def hold(engine: object) -> None:
        writer_waits.set()
        writer_goes_on.wait(PATIENCE)

    async def note(number: int, finished: Sequence[Finish], room: int) -> Step:
        asked.append((len(finished), room))
        return await step(number, finished, room)

    async with open_durable_lanes(
        store, {"held": held, "echo": echo}, {"main": 5}, capacity=5
    ) as lanes:
        assert await (await lanes.submit("echo", "first")).wait() == "first"
        await wait_all_tasks_blocked()
        step = store.step
        monkeypatch.setattr(store, "step", note)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._transact, hold)
            await trio.to_thread.run_sync(writer_waits.wait, PATIENCE)
            for n in range(3):
                nursery.start_soon(lanes.submit, "held", n)
            await wait_all_tasks_blocked()
            writer_goes_on.set()
        await all_run.wait()
        await wait_all_tasks_blocked()
        assert asked == [(0, 5)]
        over.set()


class Passes(trio.abc.Instrument):
    """Counts the passes of the scheduler."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


@pytest.mark.many_seeds(10)
async def test_a_job_and_the_step_that_may_claim_it_are_asked_for_in_the_same_pass(
    autojump_clock: MockClock,
) -> None:
    class Noted(MemoryStore):  # type: ignore[misc]  # it is final
        def __init__(self) -> None:
            super().__init__()
            self.claims_last = True

        def do(self, act: Any, ticket: str) -> Any:
            asked.append(("enqueue", passes.number))
            return super().do(act, ticket)

        def step(self, number: int, finished: Sequence[Finish], room: int) -> Any:
            asked.append(("step", passes.number))
            return super().step(number, finished, room)

    async def echo(payload: Any) -> Any:
        return payload

    passes, asked = Passes(), list[tuple[str, int]]()
    trio.lowlevel.add_instrument(passes)
    async with open_durable_lanes(Noted(), {"echo": echo}) as lanes:
        await wait_all_tasks_blocked()
        for n in range(5):  # the pump waits, or has just met the end of the job before
            job = await lanes.submit("echo", n)
            assert ("step", dict(asked[::-1])["enqueue"]) in asked
            assert await job.wait() == n
            asked.clear()


async def test_a_step_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    async with store.open(opening()):
        await store.join("me")
        await store.step(1, [], 5)
        with closing(sqlite3.connect(path)) as reader:

            def version() -> int:
                return int(reader.execute("PRAGMA data_version").fetchone()[0])

            before = version()
            assert (await store.step(2, [], 5)).claims == ()
            assert version() == before
            await store.leave()
            assert version() != before
