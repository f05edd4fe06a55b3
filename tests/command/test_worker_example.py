"""What the pages on the worker show: an application that runs, commands that exist, numbers."""

import ast
import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest

from tests.command.test_processes import Start, start
from tests.support.programs import PATIENCE
from trio_lanes.command import _exits, main
from trio_lanes.command._cli import cli

pytestmark = pytest.mark.real_processes

__all__ = ["start"]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "worker"
PAGES = [ROOT / "docs" / name for name in ("worker.md", "operating.md")]
OPERATING = PAGES[1].read_text("utf-8")


def test_the_example_writes_its_letters_in_order(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "letters.db"
    environment = {"LETTERS": str(store)}
    for _ in range(2):  # the second time, the keys say that it is known
        subprocess.run(
            [sys.executable, EXAMPLE / "write.py"],
            env={"PYTHONPATH": str(ROOT), **environment},
            check=True,
            timeout=PATIENCE,
        )
    assert main(["status", "--store", f"sqlite:{store}"]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown == (EXAMPLE / "status.txt").read_text("utf-8").splitlines()

    (tmp_path / "letters.limit").write_text("7")
    worker = start(
        *("worker", "examples.worker.app:lanes", "--reload", "examples.worker.app:limits"),
        **environment,
    )
    worker.see("letter .* succeeded", times=3)
    worker.send(1)
    worker.see("SIGHUP: reloaded")
    worker.send(15)
    assert worker.ended() == 0
    letters = sorted(tmp_path.glob("letters.letters/*.txt"), key=lambda path: int(path.stem))
    assert [path.read_text().splitlines()[0] for path in letters] == [
        "Dear alice,",
        "Dear bob,",
        "Dear alice,",
    ]
    assert main(["limit", "main", "4", "--store", f"sqlite:{store}"]) == 0
    assert capsys.readouterr().out == "main runs 4 at once, not 7\n"


def parsed(line: str) -> click.Context:
    """The context of that command line, which must be right."""
    words = shlex.split(line, comments=True)
    words = words[words.index("trio-lanes") + 1 :]
    command: Any = cli.commands[words[0]]
    context: click.Context = command.make_context(words[0], words[1:])
    return context


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_on_the_pages_can_be_typed(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIO_LANES_STORE", "sqlite:letters.db")
    text = page.read_text("utf-8")
    found = re.findall(r"^\$ (trio-lanes .*)$", text, re.M) + re.findall(
        r"^\| `(trio-lanes [^`]*)`", text, re.M
    )
    assert found
    for line in found:
        parsed(line)


def test_every_command_is_on_the_pages() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    for name, command in cli.commands.items():
        assert f"`trio-lanes {name}" in text
        for parameter in command.params:
            shown = [option for option in parameter.opts if option.startswith("--")]
            if not getattr(parameter, "hidden", False) and shown:
                assert shown[0] in text, f"{name} {shown[0]}"


def test_the_exit_codes_are_the_exit_codes_of_the_command() -> None:
    table = OPERATING.partition("## Exit codes")[2].partition("\n## ")[0]
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)]
    codes = [value for name, value in vars(_exits).items() if name.isupper()]
    assert documented == codes
    helped = re.findall(r"^  (\d+) ", cli.epilog or "", re.M)
    assert [int(code) for code in helped] == codes


def most(line: str) -> float:
    """Seconds that the worker of that command line may take to end."""
    given = parsed(line).params
    after = given["kill_after"] if given["processes"] > 1 else given["cancel_grace"]
    return float(given["grace"] + after)


def test_stop_timeouts_are_longer_than_the_worker_may_take() -> None:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(EXAMPLE / "trio-lanes.service")
    service = unit["Service"]
    assert (
        float(service["TimeoutStopSec"])
        >= most(service["ExecStart"].replace("/srv/letters/.venv/bin/", "")) + 10
    )
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == {_exits.USAGE, _exits.STORE_UNUSABLE}

    (command,) = re.findall(r"^CMD (.*)$", (EXAMPLE / "Dockerfile").read_text(), re.M)
    words = ast.literal_eval(command)  # the exec form is a list of strings
    (period,) = re.findall(r"stop_grace_period: (\d+)s", (EXAMPLE / "compose.yaml").read_text())
    assert float(period) >= most(shlex.join(words)) + 10
