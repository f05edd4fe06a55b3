"""The command line: errors are one line and a code; what is missing is said; applications."""

import runpy
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from trio_lanes import command
from trio_lanes.command import _cli, _show, main
from trio_lanes.command._answer import Answer, Table, number, shortened, to_json
from trio_lanes.durable import StoreLockedError, StoreUnavailableError

ROOT = Path(__file__).parents[2]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and standard error."""
    code = main(arguments)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["dance"], "No such command 'dance'."),
        (["status"], "Missing option '--store', or TRIO_LANES_STORE"),
        (
            ["why", "17"],
            "Missing option '--store', or TRIO_LANES_STORE, or '--page URL' of an application",
        ),
        (["cancel", "--store", "sqlite:x"], "Missing argument 'ID...'."),
        (["cancel", "x", "--store", "sqlite:x"], "Invalid value for 'ID...': 'x' is not a valid"),
        (["jobs", "--state", "odd", "--store", "s"], "Invalid value for '--state': 'odd'"),
        (["pause", "main", "--for", "x", "--store", "s"], "Invalid value for '--for': 'x' is no"),
        (["pause", "main", "--for", "inf", "--store", "s"], "Invalid value for '--for': 'inf' is"),
        (["limit", "main", "-1", "--store", "s"], "Invalid value for '[N|inf]': '-1' is neither"),
        (["limit", "main", "1.5", "--store", "s"], "Invalid value for '[N|inf]': '1.5' is neither"),
        (["worker", "app:x", "--processes", "0"], "Invalid value for '--processes': 0 is not in"),
        (["status", "--store", "jobs.db"], "'jobs.db' does not name a store; use: sqlite:PATH"),
        (["status", "--store", "sqlite:"], "'sqlite:' does not name a store"),
        (["status", "--store", "oracle:x"], "'oracle:x' does not name a store"),
    ],
)
def test_a_mistake_is_one_line_and_2(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = told(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"trio-lanes: {why}")
    assert err.count("\n") == 1


def test_the_store_may_be_named_by_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIO_LANES_STORE", f"sqlite:{tmp_path}/none.db")
    code, err = told(capsys, "status")
    assert (code, err.count("\n")) == (3, 1)
    assert f"there is no store {tmp_path}/none.db: a worker makes it" in err
    assert not list(tmp_path.iterdir())


def test_nothing_typed_shows_the_help_and_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = told(capsys)
    assert code == 2
    assert "Usage: trio-lanes" in err
    assert "requeue" in err


def test_a_path_at_which_there_can_be_no_store_is_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(
        "from trio_lanes.durable import *\n"
        "lanes = open_durable_lanes(SqliteStore('nowhere/jobs.db'), {})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "app", raising=False)
    code, err = told(capsys, "worker", "app:lanes")
    assert code == 3
    assert "there is no folder" in err.splitlines()[-1]


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\0" + bytes(100)])
def test_a_store_that_is_none_is_3(
    content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    code, err = told(capsys, "status", "--store", f"sqlite:{path}")
    assert (code, err.count("\n")) == (3, 1)
    assert path.read_bytes() == content


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(_cli.cli, "main", fail)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StoreUnavailableError("no room\nleft"), 5, "no room left"),
        (StoreUnavailableError(), 5, "StoreUnavailableError"),
        (ExceptionGroup("g", [ExceptionGroup("h", [StoreUnavailableError("x")])]), 5, "x"),
        (StoreLockedError("jobs.db", "process 5"), 4, "jobs.db is locked by another worker"),
        (ValueError("what"), 70, "ValueError: what (--traceback shows where)"),
        (BaseExceptionGroup("g", [SystemExit("x")]), 70, "SystemExit: x"),
    ],
)
def test_every_error_is_one_line_and_its_code(
    error: BaseException,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, error)
    got, err = told(capsys)
    assert got == code
    assert err.startswith(f"trio-lanes: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), click.Abort(), BaseExceptionGroup("g", [KeyboardInterrupt()])],
)
def test_ctrl_c_is_130(
    error: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    assert told(capsys) == (130, "")


def test_a_traceback_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = told(capsys, "--traceback", "status", "--store", "sqlite:none.db")
    assert code == 3
    assert err.startswith("  + Exception Group Traceback") or err.startswith("Traceback")
    assert "trio-lanes: there is no store none.db" in err.splitlines()[-1]


def test_help_has_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "  130  Ctrl-C\n" in shown
    for name in ("worker", "status", "jobs", "dead", "requeue", "purge", "pause", "check"):
        assert f"\n  {name} " in shown
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trio-lanes 1")


# ---- what it needs


def test_the_error_names_the_extra_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    code, err = told(capsys, "status")
    assert code == 2
    assert err.startswith("trio-lanes needs click and rich: pip install 'trio-lanes[command]', or")


def test_it_is_a_script_and_a_module(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, function = project["scripts"]["trio-lanes"].partition(":")
    assert getattr(import_module(module), function) is main
    monkeypatch.setattr(sys, "argv", ["trio-lanes", "--version"])
    import_module("trio_lanes.__main__")  # as tools do, to read what is in it
    assert capsys.readouterr().out == ""
    sys.modules.pop("trio_lanes.__main__")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("trio_lanes", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("trio-lanes 1")


# ---- applications


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("tests.command.app", "'tests.command.app' is not of the form module:name"),
        (":lanes", "':lanes' is not of the form module:name"),
        ("nothing_here:lanes", "nothing_here cannot be imported: ModuleNotFoundError: No module"),
        ("tests.command.app:nowhere", "there is no nowhere in tests.command.app"),
        ("tests.command.app:limits.x", "there is no limits.x in tests.command.app"),
        ("tests.command.app:number", "tests.command.app:number must be what open_durable_lanes"),
        ("tests.command.app:limits", "tests.command.app:limits must be what open_durable_lanes"),
        ("tests.command.app:wants", "tests.command.app:wants must be what open_durable_lanes"),
        ("tests.command.app:coroutine", "tests.command.app:coroutine must be what"),
        ("tests.command.app:nothing", "tests.command.app:nothing must give DurableLanes, not None"),
        (
            "tests.command.app:asking",
            "tests.command.app:asking has worker=False, so it",
        ),
    ],
)
def test_a_bad_application_is_a_mistake_of_the_caller(
    named: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = told(capsys, "worker", named)
    assert code == 2
    assert err.startswith(f"trio-lanes: {why}")
    assert err.count("\n") == 1


def test_an_application_that_ends_the_process_when_it_is_imported_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_a_program.py").write_text("import sys\nsys.exit('no settings')\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, err = told(capsys, "worker", "only_a_program:lanes")
    assert code == 2
    assert err == "trio-lanes: only_a_program cannot be imported: SystemExit: no settings\n"


def test_applications_are_found_from_the_current_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text("lanes = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for _ in range(2):  # the second time it is there already
        _, err = told(capsys, "worker", "only_here:lanes")
        assert "only_here:lanes must be what open_durable_lanes returns" in err
    assert sys.path.count(str(tmp_path)) == 1


# ---- the terminal


class Terminal(Console):
    """A console on a terminal."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, force_terminal=True, width=60, **options)


def test_a_table_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(("a", "b"), [("x" * 50, "y" * 50)])
    _show.show(Answer(None, [table]), as_json=False)
    assert f"{'x' * 50}   {'y' * 50}" in capsys.readouterr().out
    monkeypatch.setattr(_show, "Console", Terminal)
    _show.show(Answer(None, [table]), as_json=False)
    assert capsys.readouterr().out.count("x" * 28) == 1  # the rest is in the next line


async def test_progress_is_shown_on_a_terminal_when_it_takes_long(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_show, "Console", Terminal)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one shows no progress
    async with _show.progress("at once", 10):
        await trio.sleep(0.4)
    assert capsys.readouterr().err == ""
    async with _show.progress("reading", 10) as advance:
        await trio.sleep(1)
        advance(4)
        await trio.sleep(1)
    shown = capsys.readouterr().err
    assert "reading" in shown
    assert "4/10" in shown
    async with _show.progress("looking"):
        await trio.sleep(3)
    shown = capsys.readouterr().err
    assert "looking" in shown
    assert "/" not in shown


async def test_progress_is_silent_without_a_terminal(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _show.progress("reading", 10) as advance:
        advance(5)
        await trio.sleep(5)
    assert capsys.readouterr() == ("", "")


def test_tables_are_shortened_and_json_is_complete() -> None:
    assert shortened("one\n  two") == "one two"
    assert shortened("x" * 100) == "x" * 79 + "…"
    assert number(1234567) == "1,234,567"
    assert number(float("inf")) == "∞"
    assert to_json({"a": float("inf"), "b": [1.5, "é"]}) == (
        '{\n  "a": null,\n  "b": [\n    1.5,\n    "é"\n  ]\n}'
    )
