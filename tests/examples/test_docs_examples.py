"""The examples that the docs show are files, are run, and print what the docs say they print."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

# The page on testing shows these; they are tests, so they run as such.
from examples.howto.test_gateway import test_a_user_is_answered_in_order as test_shown_in_order
from examples.howto.test_gateway import (
    test_stop_forgets_what_waits_and_not_what_runs as test_shown_stop,
)
from tests.support import doors
from tests.support.programs import PATIENCE
from tools import draw_howto, draw_performance

__all__ = ["test_shown_in_order", "test_shown_stop"]

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for folder in ("", "from", "howto")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
]
EXAMPLES = [
    path
    for folder in ("coming", "first", "tutorial", "howto")
    for path in sorted((ROOT / "examples" / folder).glob("*.py"))
]
WITH_OUTPUT = [path for path in EXAMPLES if path.with_suffix(".txt").exists()]
# What it prints depends on the scheduler: a test of its own
UNORDERED = ROOT / "examples" / "coming" / "by_hand.py"
IN_ASYNCIO = {"in_asyncio.py", "asyncio_inbox.py"}
# What they are about is outside of Trio's clock.
IN_REAL_TIME = {"threads.py", "portal.py", "database.py", "durable.py", "spent.py"}
# It imports `trio_asyncio`, which changes the loops of asyncio for all of its process.
ALONE = ROOT / "examples" / "howto" / "asyncio_bodies.py"
NOT_PROGRAMS = {"adaptive_simulation.py", "gateway.py", "test_gateway.py"}
# Real processes of test_shutdown_..., and an application of tests/monitor
SERVICES = {"web_server.py", "service.py", "monitor.py"}


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("path", [path for path in WITH_OUTPUT if path != ALONE], ids=name)
def test_an_example_prints_what_its_page_shows(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = None
    if path.name not in IN_REAL_TIME:
        clock = trio.testing.MockClock(autojump_threshold=0)
    monkeypatch.chdir(tmp_path)  # where one of them makes its store
    main = runpy.run_path(str(path))["main"]
    if path.name in IN_ASYNCIO:
        doors.run(main)
    else:
        trio.run(main, clock=clock)
    assert capsys.readouterr().out == path.with_suffix(".txt").read_text("utf-8")


def test_the_program_with_locks_loses_the_order_and_keeps_the_lock(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = set()
    for seed in range(30):
        trio._core._run._r.seed(seed)
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(runpy.run_path(str(UNORDERED))["main"], clock=clock)
        *order, kept = capsys.readouterr().out.splitlines()
        assert kept == "locks that stay: 1"
        orders.add(tuple(order))
    assert len(orders) > 1


@pytest.mark.real_processes
def test_the_example_with_trio_asyncio_prints_what_its_page_shows() -> None:
    done = subprocess.run([sys.executable, ALONE], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == ALONE.with_suffix(".txt").read_text("utf-8"), done.stderr


def test_every_program_among_the_examples_has_its_output_checked() -> None:
    unchecked = {path.name for path in EXAMPLES} - {path.name for path in WITH_OUTPUT}
    unchecked.remove(UNORDERED.name)
    assert unchecked == NOT_PROGRAMS | SERVICES


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_every_example_is_shown_on_a_page(path: Path) -> None:
    assert any(f"examples/{name(path)}\n" in page.read_text("utf-8") for page in PAGES)


def test_the_figures_of_the_readme_and_of_the_pages_are_those_of_the_measured_tables() -> None:
    rows = draw_performance.read()
    assert len(rows) == 11
    assert (
        len({draw_performance.run_of(name).head["commit"] for name in draw_performance.PRICES}) == 1
    )
    for page, text in draw_performance.pages(rows).items():
        assert page.read_text("utf-8") == text, "python -m tools.draw_performance"
    assert draw_performance.PICTURE.read_text("utf-8") == draw_performance.draw(rows)


@pytest.mark.parametrize("example", draw_howto.DRAWN)
def test_the_picture_of_an_example_is_that_of_its_recorded_run(example: str) -> None:
    drawn = draw_howto.draw(draw_howto.record(example))
    assert (draw_howto.PICTURES / f"{example}.svg").read_text("utf-8") == drawn, (
        "draw it again: python -m tools.draw_howto"
    )
    assert any(f"]({example}.svg)" in page.read_text("utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_no_python_that_is_not_run(page: Path) -> None:
    assert not re.search(
        r"^(```|:::)\{?(python|code-block\}? python)", page.read_text("utf-8"), re.M
    )
