"""Several worker processes on one SQLite file, which their parent owns and serves."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.command.test_processes import Program
from tests.support.chaos import times
from tests.support.programs import PATIENCE
from trio_lanes.command import main
from trio_lanes.durable import SqliteStore, open_durable_lanes

pytestmark = pytest.mark.real_processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(*arguments: str, **environment: str) -> Program:
        programs.append(Program(*arguments, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def served(
    start: Callable[..., Program], path: Path, number: int, *options: str, lease: float = 30
) -> Program:
    parent = start(
        *("worker", "tests.command.app:served", f"--processes={number}", f"--store=sqlite:{path}"),
        *options,
        TEST_JOBS=str(path),
        TEST_LEASE=str(lease),
    )
    parent.see("is ready", times=number)
    return parent


def submit(path: Path, *what: object, sessions: int = 0) -> list[int]:
    async def submit_all() -> list[int]:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            return [
                (
                    await lanes.submit(
                        "note", payload, session=f"{n % sessions}" if sessions else None
                    )
                ).id
                for n, payload in enumerate(what)
            ]

    return trio.run(submit_all)


def statuses(path: Path) -> list[tuple[int, str, int, int]]:
    async def ask() -> list[tuple[int, str, int, int]]:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            assert (await lanes.check()).problems == ()
            found = await lanes.jobs(limit=-1)
            return [(one.id, one.state.value, one.attempt, one.crashes) for one in found]

    return trio.run(ask)


def wait_until_all_have_ended(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while any(state in ("waiting", "running", "parked") for _, state, *_ in statuses(path)):
        assert time.monotonic() < until
        time.sleep(0.1)


def pids(program: Program, number: int) -> dict[int, int]:
    """The present processes, by number, as the parent's lines tell them."""
    found = {}
    for line in program.lines:
        match = re.search(r"process (\d+) started, pid (\d+)", line)
        if match:
            found[int(match[1])] = int(match[2])
    assert len(found) >= number
    return found


def noted(path: Path) -> list[list[int]]:
    """What the runs have noted: (session, payload), in the order of their ends."""
    with closing(sqlite3.connect(f"{path}.notes", timeout=60)) as notes:
        rows = notes.execute("SELECT told FROM notes ORDER BY rowid").fetchall()
    return [json.loads(told) for (told,) in rows]


def test_two_processes_work_on_one_file_and_end_together(
    start: Callable[..., Program], path: Path
) -> None:
    parent = served(start, path, 2)
    submit(path, *range(40), sessions=5)
    wait_until_all_have_ended(path)
    parent.send(signal.SIGTERM)
    assert parent.ended() == 0
    assert {state for _, state, *_ in statuses(path)} == {"succeeded"}
    by_session: dict[str, list[int]] = {}
    for session, payload in noted(path):
        by_session.setdefault(session, []).append(payload)  # type: ignore[call-overload]
    assert all(one == sorted(one) for one in by_session.values())


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_runs_one_crash_each_and_nothing_else(
    start: Callable[..., Program], path: Path
) -> None:
    chance = random.Random(5)
    parent = served(start, path, 2, "--grace=5", lease=3600)  # for which nothing waits
    kills = times(3)
    total = 0
    for kill in range(kills):
        submit(path, *range(total, total + 20), sessions=5)
        total += 20
        time.sleep(chance.random() * 0.3)
        number = kill % 2 + 1
        os.kill(pids(parent, 2)[number], signal.SIGKILL)
        parent.see(f"process {number}, pid .* was ended by SIGKILL")
        parent.see(f"process {number} is ready")
    wait_until_all_have_ended(path)
    parent.send(signal.SIGTERM)
    assert parent.ended() == 0
    told = statuses(path)
    assert len(told) == total
    assert {state for _, state, *_ in told} == {"succeeded"}
    assert sum(crashes for *_, crashes in told) <= 8 * kills  # what ran at a kill
    assert {payload for _, payload in noted(path)} == {*range(total)}


@pytest.mark.slow
def test_processes_end_at_once_when_their_parent_is_killed(
    start: Callable[..., Program], path: Path
) -> None:
    parent = served(start, path, 2)  # with the grace and the lease that are the defaults
    children = pids(parent, 2).values()
    submit(path, 60, 61)
    parent.see("begins", times=2)
    parent.send(signal.SIGKILL)
    began = time.monotonic()
    parent.ended()
    while any(map(lives, children)):
        time.sleep(0.05)
    took = time.monotonic() - began
    print(f"the processes ended {took:.1f} s after their parent")
    assert took < 15  # a second or two, on a quiet machine, and not the grace
    assert parent.count("was given back after") == 2
    again = served(start, path, 2, "--grace=0")  # the file is free, and so are the jobs
    run_again = {("running", 1)}
    wait_for(lambda: {(state, crashes) for _, state, _, crashes in statuses(path)} == run_again)
    again.send(signal.SIGTERM)
    assert again.ended() == 0


@pytest.mark.slow
def test_processes_with_an_asyncio_loop_end_at_once_when_their_parent_is_killed(
    start: Callable[..., Program], path: Path
) -> None:
    arguments = "worker", "tests.command.app:in_loop", "--processes=2", f"--store=sqlite:{path}"
    parent = start(*arguments, TEST_JOBS=str(path))
    parent.see("is ready", times=2)
    submit_one(path, "waits", 1)
    parent.see("waits .* begins")
    parent.send(signal.SIGKILL)
    began = time.monotonic()
    assert parent.ended() == -signal.SIGKILL
    assert time.monotonic() - began < 15
    assert parent.count("was given back after") == 1
    assert parent.count("has not answered") == 0


def submit_one(path: Path, name: str, payload: object) -> None:
    async def submit() -> None:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            await lanes.submit(name, payload)

    trio.run(submit)


def last(path: Path, kind: str) -> None:
    submit_one(path, "last", kind)
    wait_for(lambda: len(runs(path, kind)) == 1)


def runs(path: Path, kind: str) -> list[tuple[str, int, float]]:
    """What the runs of a job have noted: (begins or ends, pid, when)."""
    lines = [line.split() for line in Path(f"{path}.runs").read_text().splitlines()]
    return [(word, int(pid), float(when)) for word, of, pid, when in lines if of == kind]


def wait_for(condition: Callable[[], bool]) -> float:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
    return time.monotonic()


@pytest.mark.slow
def test_no_job_runs_twice_at_once_when_a_parent_is_killed_and_started_again(
    start: Callable[..., Program], path: Path
) -> None:
    lease = 8
    Path(f"{path}.runs").touch()
    arguments = "worker", "tests.command.app:listening", "--processes=2", f"--store=sqlite:{path}"
    environment = {"TEST_JOBS": str(path), "TEST_LEASE": str(lease)}
    parent = start(*arguments, **environment)
    parent.see("is ready", times=2)
    last(path, "never")  # it holds up its process, so the other gets the next
    ((_, never_pid, _),) = runs(path, "never")
    last(path, "late")
    parent.send(signal.SIGKILL)
    killed = time.monotonic()
    again = start(*arguments, **environment)

    # the process that its body holds up listens no more, soon; the clock ends it
    listener = f"{path}.{never_pid}"
    closed = wait_for(lambda: not answers(listener)) - killed
    died = wait_for(lambda: not lives(never_pid))
    print(f"closed after {closed:.1f} s, ended after {died - killed:.1f} s")
    assert closed < died - killed
    assert died - killed < lease + 2

    for kind in ("late", "never"):
        wait_for(partial(is_running_again, path, kind))
    (_, _, again_at) = runs(path, "never")[1]
    assert again_at > died - 0.05
    assert [word for word, *_ in runs(path, "late")] == ["begins", "ends", "begins"]
    again.close()


def is_running_again(path: Path, kind: str) -> bool:
    return [word for word, *_ in runs(path, kind)].count("begins") == 2


def answers(listener: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(listener)
        except OSError:
            return False
    return True


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_application_on_another_file_is_refused(
    start: Callable[..., Program], path: Path
) -> None:
    parent = start(
        *("worker", "tests.command.app:served", "--processes=2", f"--store=sqlite:{path}.other"),
        TEST_JOBS=str(path),
    )
    parent.see("and --store names .*other")
    assert parent.ended() == 2


def test_a_store_for_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "tests.command.app:served", "--store=sqlite:x.db"]) == 2
    assert "--store is for --processes above 1" in capsys.readouterr().err
    assert main(["worker", "tests.command.app:served", "--processes=2", "--store=memory:x"]) == 2
    assert "does not name a SQLite file" in capsys.readouterr().err
