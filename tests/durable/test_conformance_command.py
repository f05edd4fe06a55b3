"""`python -m tests.durable.conformance`, over stores of somebody else's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.durable.conformance.__main__ import main
from tests.durable.conformance.suite import STORIES
from tests.support.programs import PATIENCE, ROOT

STRANGER = """
from trio_lanes.durable import MemoryStore

stores = {}
number = 3

def make(folder):
    if folder in stores:
        return stores[folder].another()
    return stores.setdefault(folder, MemoryStore())

def loses_jobs_when_it_is_opened_again(folder):
    return MemoryStore()

async def late(folder):
    return MemoryStore()

def nothing(folder):
    pass

def away(folder):
    raise OSError("the server is away")
"""
CLOCK = ["--clock", "trio.testing:MockClock"]
SLOW = "it_is_a_problem_that_a_store_answers_slowly"  # it needs virtual time


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module of somebody else."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return tmp_path


def test_a_store_that_does_what_it_must_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stranger:make", *CLOCK, "-k", "_life_1"]) == 0
    assert capsys.readouterr().out == "3 held, 0 failed\n"
    crashes = [name for name in STORIES if "crash" in name]
    assert main(["stranger:make", *CLOCK, "-k", "crash"]) == 0
    assert capsys.readouterr().out == f"{len(crashes)} held, 0 failed\n"


def test_the_failures_of_a_store_that_loses_jobs_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lossy = "stranger:loses_jobs_when_it_is_opened_again"
    assert main([lossy, *CLOCK, "-k", "test_the_runs_of_a_crash"]) == 1
    told = capsys.readouterr().out
    assert "FAILED test_the_runs_of_a_crash_go_before_waiting_jobs\n" in told
    assert "crash.py:" in told  # the line of the story
    assert "Traceback" not in told
    assert told.endswith("0 held, 2 failed\n")
    assert main([lossy, *CLOCK, "-k", "go_before_waiting", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().out


def test_in_real_time_it_says_how_much_was_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stranger:make", "-k", SLOW]) == 0
    assert capsys.readouterr().out == (
        "0 held, 0 failed, 1 need virtual time and were not played\n"
    )
    assert main(["stranger:make", "-k", "_life_1"]) == 0
    assert "3 need virtual time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["stranger"], "must be MODULE:NAME, not 'stranger'"),
        (["no_such_module:make"], "No module named 'no_such_module'"),
        (["stranger:gone"], "has no attribute 'gone'"),
        (["stranger:number"], "cannot be called: it is 3"),
        (["stranger:late"], "it is a coroutine function"),
        (["stranger:nothing"], "it returned None, which is no store"),
        (["stranger:away"], "it raised OSError: the server is away"),
        (["stranger:make", "--clock", "trio.testing"], "argument --clock: must be MODULE:NAME"),
        (["stranger:make", "-k", "no such story"], "no name has 'no such story'"),
        ([], "required: MODULE:MAKE"),
    ],
)
def test_a_bad_argument_is_named(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.real_processes
def test_it_is_one_command_in_a_checkout(stranger: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.durable.conformance", *arguments],
            cwd=ROOT,
            env={"PYTHONPATH": str(stranger)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    code, told = run("--help")
    assert code == 0
    assert "MAKE(folder) returns a store that is not open" in told
    story = ["-k", "test_the_runs_of_a_crash_go_before_waiting_jobs", *CLOCK]
    assert run("stranger:make", *story) == (0, "1 held, 0 failed\n")
    code, told = run("stranger:loses_jobs_when_it_is_opened_again", *story)
    assert code == 1
    assert told.endswith("0 held, 1 failed\n")
