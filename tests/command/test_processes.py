"""Workers and supervisors as real processes, with real signals and real files."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.programs import PATIENCE
from trio_lanes.command import main
from trio_lanes.durable import SqliteStore, open_durable_lanes

pytestmark = pytest.mark.real_processes

ROOT = Path(__file__).parents[2]


class Program:
    """``trio-lanes``, as a process whose lines are read as they come."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trio_lanes", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def see(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """Wait until so many further lines have that."""
        found: list[re.Match[str]] = []
        while len(found) < times:
            line = self._queue.get(timeout=PATIENCE)
            assert line is not None, f"ended without {pattern!r}: {self.lines}"
            self.lines.append(line)
            match = re.search(pattern, line)
            if match is not None:
                found.append(match)
        return found

    def ended(self) -> int:
        """Wait until it, and all that it started, has ended; its exit code."""
        while (line := self._queue.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        return self.process.wait(PATIENCE)

    def seen(self, pattern: str) -> list[re.Match[str]]:
        """Which of the lines that were read have that."""
        return [match for line in self.lines if (match := re.search(pattern, line))]

    def count(self, pattern: str) -> int:
        return len(self.seen(pattern))

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        # what a supervisor leaves behind ends by itself, since its line is cut
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait(PATIENCE)


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    programs: list[Program] = []

    def start(*arguments: str, **environment: str) -> Program:
        programs.append(Program(*arguments, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def submit(path: Path, *whats: Any) -> list[int]:
    async def go() -> list[int]:
        async with open_durable_lanes(SqliteStore(path), {}, {"main": 2}, worker=False) as lanes:
            return [(await lanes.submit("act", what, session=str(what))).id for what in whats]

    return trio.run(go)


def ask(path: Path, capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command, "--json", "--store", f"sqlite:{path}"]) == 0
    return json.loads(capsys.readouterr().out)


def wait_dead(path: Path, capsys: pytest.CaptureFixture[str], id: int) -> None:
    """Wait until that job is dead in the store: the log says so before it is written."""
    for _ in range(int(PATIENCE / 0.05)):
        if [job["id"] for job in ask(path, capsys, "dead")] == [id]:
            return
        time.sleep(0.05)
    raise AssertionError(f"job {id} is not dead")


# ---- one worker


def test_a_worker_that_gets_a_signal_finishes_its_running_jobs(
    start: Start, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = path.with_name("go on")
    submit(path, f"until {go_on}", f"until /{go_on}", 60)  # lane main runs two at once
    worker = start("worker", "tests.command.app:sqlite", "--grace=600", TEST_JOBS=str(path))
    worker.see("act .* begins in main, attempt 1", times=2)

    second = start("worker", "tests.command.app:sqlite", TEST_JOBS=str(path))
    assert second.ended() == 4
    pid = worker.process.pid
    (line,) = second.lines
    owner = f"process {pid} on {os.uname().nodename}"
    assert line.startswith(f"trio-lanes: {path} is locked by another worker: {owner}; ")
    assert ask(path, capsys, "pause", "main") == {"paused": "main", "seconds": None}
    now = ask(path, capsys, "status")
    assert [(one["pid"], one["lives"]) for one in now["instances"]] == [(pid, True)]

    worker.send(signal.SIGTERM)
    worker.see("SIGTERM: draining, with 600 s of grace")
    assert not worker.count("succeeded")
    go_on.touch()
    assert worker.ended() == 0
    assert worker.count("act .* succeeded after") == 2
    assert worker.lines[-1].endswith("all jobs have ended; the worker ends")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ ", x) for x in worker.lines)
    jobs = ask(path, capsys, "jobs")
    assert [job["state"] for job in jobs] == ["succeeded", "succeeded", "waiting"]
    assert [job["crashes"] for job in jobs] == [0, 0, 0]
    assert ask(path, capsys, "status")["instances"] == []


def test_people_act_on_a_store_while_its_worker_lives(
    start: Start, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running, waiting, failing = submit(path, 60, 61, "fail")
    worker = start("worker", "tests.command.app:sqlite", TEST_JOBS=str(path))
    worker.see("begins", times=2)
    assert ask(path, capsys, "limit", "main", "1")["before"] == 2
    assert ask(path, capsys, "cancel", str(running), str(waiting))["left"] == []
    worker.see("was cancelled after", times=2)
    worker.see(f"act {failing} is dead after .*: ValueError: this one fails")
    wait_dead(path, capsys, failing)
    assert ask(path, capsys, "requeue", "--all") == {"requeued": 1}
    worker.see(f"act {failing} is dead")
    wait_dead(path, capsys, failing)
    assert ask(path, capsys, "purge", "--all") == {"purged": 1}
    assert ask(path, capsys, "check")["problems"] == []
    worker.send(signal.SIGINT)
    assert worker.ended() == 0


def test_a_worker_that_was_killed_is_gone_and_its_job_has_a_crash(
    start: Start, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = submit(path, 60)
    worker = start("worker", "tests.command.app:sqlite", TEST_JOBS=str(path))
    worker.see("begins")
    worker.send(signal.SIGKILL)
    assert worker.ended() == -signal.SIGKILL
    (instance,) = ask(path, capsys, "status")["instances"]
    assert instance["lives"] is False
    worker = start("worker", "tests.command.app:sqlite", "--grace=0", TEST_JOBS=str(path))
    worker.see("begins")
    (told,) = ask(path, capsys, "jobs", str(job))
    assert (told["state"], told["crashes"]) == ("running", 1)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.count("was given back") == 1


def test_signals_end_a_process_whose_bodies_do_not(start: Start) -> None:
    worker = start(
        *("worker", "tests.command.app:memory", "--grace=0.1", "--cancel-grace=0.1"),
        TEST_ACTS="deaf",
    )
    worker.see("begins|ready", times=2)
    worker.send(signal.SIGTERM)
    worker.see("this process waits for them")
    worker.send(signal.SIGTERM)
    assert worker.ended() == -signal.SIGTERM


# ---- several


def supervised(start: Start, *options: str, acts: str = "") -> Program:
    """A parent whose two workers work, and have begun what there is."""
    parent = start(
        *("worker", "tests.command.app:memory", "--processes=2", *options), TEST_ACTS=acts
    )
    if acts:  # what is told by different processes comes in any order
        parent.see("process 2 is ready|begins in main", times=3)
    else:
        parent.see("process 2 is ready")
    return parent


def test_the_parent_alone_is_signalled_and_all_end_in_order(start: Start) -> None:
    parent = supervised(start)
    (killed,) = parent.seen(r"process 1 started, pid (\d+)")
    os.kill(int(killed[1]), signal.SIGKILL)
    parent.see("process 1, .* was ended by SIGKILL")
    parent.see("process 1 is restarted in 0.5 s")
    parent.see("process 1 is ready")
    parent.send(signal.SIGTERM)
    assert parent.ended() == 0
    assert parent.count("SIGTERM: draining") == 2
    assert parent.count("all jobs have ended; the worker ends") == 2
    assert parent.lines[-1].endswith("all processes have ended")


def test_ctrl_c_reaches_each_worker_once(start: Start) -> None:
    parent = supervised(start)
    os.killpg(parent.process.pid, signal.SIGINT)  # as a terminal does
    assert parent.ended() == 0
    assert parent.count("SIGINT: draining") == 2
    assert parent.count("cancelling the jobs that are left") == 0


def test_workers_cancel_their_jobs_at_once_when_their_parent_is_killed(
    start: Start, tmp_path: Path
) -> None:
    parent = supervised(start, "--grace=600", acts=f"until {tmp_path}/never")
    parent.send(signal.SIGKILL)
    assert parent.ended() == -signal.SIGKILL
    assert parent.count("the parent of this process has ended: the jobs .* are cancelled") == 2
    assert parent.count("was given back after") == 2
    assert parent.count("draining") == 0


def test_sighup_has_all_of_them_reload(start: Start) -> None:
    parent = supervised(start, "--reload=tests.command.app:limits")
    parent.send(signal.SIGHUP)
    parent.see("SIGHUP: reloaded", times=2)
    parent.send(signal.SIGTERM)
    assert parent.ended() == 0


def test_who_does_not_end_is_killed_and_that_is_no_clean_drain(start: Start) -> None:
    options = ("--grace=0.2", "--kill-after=0.3", "--cancel-grace=3600")
    parent = supervised(start, *options, acts="deaf")
    parent.send(signal.SIGTERM)
    assert parent.ended() == 1
    assert parent.count("process ., .*, has not ended in time and gets SIGTERM") == 2
    assert parent.count("process ., .*, has not ended in time and gets SIGKILL") == 2
    assert parent.count("was ended by SIGKILL") == 2


def test_a_store_of_one_process_is_refused_with_one_clear_line(start: Start, path: Path) -> None:
    parent = start(*("worker", "tests.command.app:sqlite", "--processes=2"), TEST_JOBS=str(path))
    assert parent.ended() == 2
    refusals = [line for line in parent.lines if line.startswith("trio-lanes: ")]
    assert refusals == [
        f"trio-lanes: <trio_lanes.durable.SqliteStore {str(path)!r}> takes one worker: "
        "leave --processes out, or give its file with --store, so that the parent process "
        "serves it"
    ]


@pytest.mark.parametrize("options", [[], ["--reload=tests.command.app:limits"]])
def test_a_supervisor_runs_where_it_is_called(
    options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # its first worker sends SIGTERM to its parent, and no other does: it could come too late
    monkeypatch.setenv("TEST_ACTS", f"stop the parent but once {tmp_path / 'told'}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    assert main(["worker", "tests.command.app:memory", "--processes=2", *options]) == 0
