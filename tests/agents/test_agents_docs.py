"""The pages on agents: their examples are run, their picture and their tables are the code's."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import trio
import trio.testing

from tools.draw_run_status import PICTURE, draw
from trio_lanes import agents
from trio_lanes.agents import RUN_TRANSITIONS, RunStatus

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "agents").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("agents_*.py"))
WAYS = {(str(old), str(new)) for old, ends in RUN_TRANSITIONS.items() for new in ends}


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_page_shows(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(runpy.run_path(str(path))["main"], clock=clock)
    assert capsys.readouterr().out == path.with_suffix(".txt").read_text("utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_and_its_output_are_shown_on_a_page(path: Path) -> None:
    shown = "".join(page.read_text("utf-8") for page in PAGES)
    assert f"examples/{path.name}\n" in shown
    assert f"examples/{path.stem}.txt\n" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_no_python_that_is_not_run(page: Path) -> None:
    assert not re.search(
        r"^(```|:::)\{?(python|code-block\}? python)", page.read_text("utf-8"), re.M
    )


def test_the_picture_of_run_statuses_is_drawn_from_the_table() -> None:
    assert PICTURE.read_text("utf-8") == draw(RUN_TRANSITIONS), (
        "draw it again: python -m tools.draw_run_status"
    )


def test_the_picture_of_run_statuses_has_every_way_and_no_other() -> None:
    picture = ElementTree.fromstring(draw(RUN_TRANSITIONS))
    svg = "{http://www.w3.org/2000/svg}"
    titles = [title.text for shape in picture for title in shape.iter(f"{svg}title")]
    ways = [tuple(str(title).split(" to ")) for title in titles if " to " in str(title)]
    assert sorted(ways) == sorted(WAYS)
    words = [text.text for text in picture.iter(f"{svg}text")]
    assert sorted(map(str, words)) == sorted(RunStatus)


def test_the_page_on_runs_has_the_table_of_statuses() -> None:
    page = (ROOT / "docs" / "agents" / "runs.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", page, re.M)
    ways = {(old, new) for old, ends in rows for new in re.findall(r"`(\w+)`", ends)}
    assert ways == WAYS


def test_the_reference_has_every_public_name_and_no_other() -> None:
    public = {
        name
        for name, value in vars(agents).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    reference = (ROOT / "docs" / "reference" / "agents.rst").read_text("utf-8")
    documented = re.findall(r"^\.\. auto(?!module)\w+:: (\w+)$", reference, re.M)
    assert sorted(documented) == sorted(public)


def test_public_names_say_that_they_are_public() -> None:
    for name in ("RunRegistry", "Conversation", "run_tools", "ToolCall", "TranscriptError"):
        assert getattr(agents, name).__module__ == "trio_lanes.agents"
