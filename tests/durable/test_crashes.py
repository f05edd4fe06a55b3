"""Real processes that are killed: what was accepted, what was done, and what is in the file."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.durable.crash_program import LOCKED_OUT, is_cancelled, is_tried_twice
from trio_lanes.durable import SqliteStore, open_durable_lanes

pytestmark = pytest.mark.real_processes

LONG = bool(os.environ.get("TRIO_LANES_LONG_TESTS"))
KILLED = -signal.SIGKILL
SESSIONS = list(range(6))
EACH = 12

PLACES = [
    f"{when} {what}"
    for what in ("accepted", "started", "effect", "finished", "kept", "cancelled")
    for when in ("before", "after")
]
FAILPOINTS = [(place, passes) for place in PLACES for passes in (0, 5)]
FAILPOINTS += [(f"{when} {what}", 0) for what in ("joined", "left") for when in ("before", "after")]
# these have few transactions, since what piles up is written together
FAILPOINTS += [
    (f"{when}, {what}", passes)
    for when in ("written", "committed")
    for what, passes in (
        ("joined", 0),
        ("accepted", 0),
        ("started", 0),
        ("finished", 0),
        ("finished", 3),
        ("kept", 0),
        ("cancelled", 0),
        ("left", 0),
    )
]


class Processes:
    """The nursery of processes, and one folder that they work in."""

    def __init__(self, program: subprocess.Popen[str], folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.rounds = 0

    def run(self, *orders: dict[str, Any], each: int = EACH) -> list[int]:
        """Have processes live at the same time. Returns how each ended."""
        common = {"folder": str(self.folder), "each": each, "round": self.rounds}
        self.rounds += 1
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        everything = [common | {"sessions": SESSIONS} | order for order in orders]
        self.program.stdin.write(json.dumps(everything) + "\n")
        self.program.stdin.flush()
        exits: list[int] = json.loads(self.program.stdout.readline())
        assert not (self.folder / "errors").exists(), (self.folder / "errors").read_text()
        return exits


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "tests.durable.crash_program"]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        yield program
        assert program.stdin is not None
        program.stdin.close()


@pytest.fixture
def processes(program: subprocess.Popen[str], tmp_path: Path) -> Processes:
    return Processes(program, tmp_path)


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def verify(folder: Path, kills: int, each: int = EACH) -> None:
    """Everything was accepted once, done in order, and at most repeated where it was killed."""
    done = verify_order(folder)
    verify_kept(folder)
    connection = sqlite3.connect(folder / "jobs.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    states = connection.execute("SELECT key, state FROM jobs ORDER BY key").fetchall()
    connection.close()
    assert [key for key, _ in states] == sorted(f"s{s}/{n}" for s in SESSIONS for n in range(each))
    repeated = 0
    for key, state in states:
        session, n = key.split("/")
        times = done[session].count(int(n))
        if state == "cancelled":
            assert is_cancelled(int(n)), f"{key} was cancelled without a cause"
        else:
            assert (state, times > 0) == ("succeeded", True), f"{key} was lost"
        repeated += max(0, times - 1)
    assert repeated <= 3 * kills, "more was repeated than ran when it was killed"
    trio.run(no_contradictions, folder)


def verify_order(folder: Path) -> dict[str, list[int]]:
    """{session: what was done}; one after the other, and a recorded cancellation holds."""
    cancelled = {(session, int(n)): int(at) for session, n, at in lines(folder / "cancelled")}
    done: dict[str, list[int]] = defaultdict(list)
    head: dict[str, tuple[int, int]] = defaultdict(lambda: (-1, 0))  # {session: (n, fence)}
    for session, number, fence_, at, what in lines(folder / "effects"):
        n, fence = int(number), int(fence_)
        before, fence_before = head[session]
        if what == "done":
            assert (n, fence) == head[session], f"two of {session} at once"
            done[session].append(n)
            continue
        assert int(at) <= cancelled.get((session, n), 10**9), f"{session}/{n} had been cancelled"
        assert fence > fence_before, "a later run has a greater fence"
        if n != before:
            finished = {*done[session], *(k for k in range(n) if is_cancelled(k))}
            assert n > before, f"{session} is out of order"
            assert finished >= set(range(n)), f"{session}/{n} began before its turn"
        head[session] = n, fence
    return done


def verify_kept(folder: Path) -> None:
    """What `checkpoint` returned from was found by the next attempt, after each crash."""
    kept: dict[tuple[str, str], int] = defaultdict(int)
    for session, n, mark, what in lines(folder / "kept"):
        assert is_tried_twice(int(n))
        if what == "found":
            assert int(mark) >= kept[session, n], "what was kept was lost"
        kept[session, n] = int(mark)


async def no_contradictions(folder: Path) -> None:
    async with open_durable_lanes(SqliteStore(folder / "jobs.db"), {}, worker=False) as lanes:
        assert (await lanes.check()).problems == ()


@pytest.mark.parametrize(("failpoint", "passes"), FAILPOINTS)
def test_a_kill_at_any_hand_over_loses_and_doubles_nothing(
    processes: Processes, failpoint: str, passes: int
) -> None:
    assert processes.run({"failpoint": failpoint, "passes": passes}) == [KILLED]
    assert processes.run({}) == [0]
    verify(processes.folder, 1)


def at_random(
    processes: Processes, each: int, seconds: float, *orders: dict[str, Any], last: slice
) -> None:
    """Kill each of them after a random time, again and again; let the last ones end; verify."""
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    kills, until = 0, time.monotonic() + seconds
    while time.monotonic() < until or kills < 5:
        doomed = [order | {"killed_after": draw.uniform(0.01, 0.2)} for order in orders]
        exits = processes.run(*doomed, each=each)
        assert set(exits) <= {KILLED, LOCKED_OUT}, seed
        assert KILLED in exits, seed
        kills += exits.count(KILLED)
    exits = processes.run(*orders[last], each=each)
    print(f"{kills} kills, seed {seed}")
    assert set(exits) == {0}, seed
    verify(processes.folder, kills, each)


def test_kills_at_random_under_load_lose_and_double_nothing(processes: Processes) -> None:
    size = (4000, 30.0) if LONG else (300, 3.0)
    at_random(processes, *size, {}, last=slice(None))


def test_kills_of_a_worker_and_of_its_clients_lose_and_double_nothing(
    processes: Processes,
) -> None:
    worker: dict[str, Any] = {"sessions": []}
    asking = [{"sessions": SESSIONS[n::2], "works": False} for n in range(2)]
    size = (2000, 30.0) if LONG else (100, 2.0)
    at_random(processes, *size, worker, *asking, last=slice(None))


def test_of_two_workers_that_are_killed_at_random_one_works(processes: Processes) -> None:
    size = (2000, 15.0) if LONG else (150, 1.0)
    at_random(processes, *size, {}, {"sessions": []}, last=slice(1))


def test_kills_while_the_file_is_being_made_leave_a_complete_file(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    for number in range(100 if LONG else 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        processes = Processes(program, folder)
        killed_after = random.uniform(0.0, 0.03)
        assert processes.run({"killed_after": killed_after}, each=1) == [KILLED]
        assert processes.run({}, each=1) == [0]
        verify(folder, 1, each=1)


def test_sigterm_in_the_middle_of_work_counts_as_no_crash(processes: Processes) -> None:
    assert processes.run({"slow": 0.03, "sigterm_at": 20}) == [0]
    before = lines(processes.folder / "effects")
    assert processes.run({"slow": 0.001}) == [0]
    assert len(lines(processes.folder / "effects")) > len(before), "nothing was left to do"
    connection = sqlite3.connect(processes.folder / "jobs.db")
    assert connection.execute("SELECT max(crashes) FROM jobs").fetchone() == (0,)
    attempts = connection.execute("SELECT key, attempts FROM jobs WHERE state = 'succeeded'")
    for key, number in attempts.fetchall():
        assert number == 1 + is_tried_twice(int(key.partition("/")[2])), key
    connection.close()
    verify(processes.folder, 1)


def test_a_kill_during_a_drain_is_one_crash_of_each_running_job(processes: Processes) -> None:
    order = {"slow": 3600, "sigterm_at": 3, "failpoint": "before left"}
    assert processes.run(order) == [KILLED]
    begun = [words for words in lines(processes.folder / "effects") if words[-1] == "begins"]
    assert len(begun) == 3
    connection = sqlite3.connect(processes.folder / "jobs.db")
    assert connection.execute("SELECT count(*) FROM jobs WHERE state = 'running'").fetchone() == (
        0,
    ), "what was cancelled had been given back"
    connection.close()
    assert processes.run({}) == [0]
    verify(processes.folder, 1)


def test_a_log_that_loses_its_end_with_the_power_has_the_jobs_accepted_before(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "jobs.db", tmp_path / "jobs.db-wal"
    accepted: list[tuple[int, int]] = []  # (how long the log then was, which job)

    async def accept() -> None:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
            for n in range(40):
                job = await lanes.submit("work", "x" * n * 50, session="s")
                accepted.append((log.stat().st_size, job.id))
            shutil.copytree(tmp_path, tmp_path / "image")

    trio.run(accept)
    image = tmp_path / "image"
    (image / "jobs.db-shm").unlink()  # it lives in memory
    whole = (image / "jobs.db-wal").read_bytes()
    for number in range(100 if LONG else 12):
        torn = tmp_path / f"torn{number}"
        shutil.copytree(image, torn)
        length = random.randrange(accepted[0][0], len(whole))
        noise = random.randbytes(random.randrange(4096))
        (torn / "jobs.db-wal").write_bytes(whole[:length] + noise)
        connection = sqlite3.connect(torn / "jobs.db")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        there = {id for (id,) in connection.execute("SELECT id FROM jobs")}
        connection.close()
        assert there >= {id for size, id in accepted if size <= length}
        trio.run(no_contradictions, torn)
