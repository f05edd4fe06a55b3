"""The examples that README and docs show are run, and say what these claim that they say."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import pytest
import trio

from tools import draw_lanes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def run(name: str, clock: trio.abc.Clock) -> None:
    """Run ``main`` of an example on virtual time."""
    trio.run(runpy.run_path(str(ROOT / "examples" / name))["main"], clock=clock)


@pytest.fixture
def clock() -> trio.abc.Clock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.mark.many_seeds(5)
def test_the_quick_start_prints_what_the_readme_and_the_site_show(
    clock: trio.abc.Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    run("quick_start.py", clock)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 4
    for page in (README, INDEX):
        assert f"```text\n{shown}```\n" in page


def test_webhooks_stay_in_order_and_a_hung_one_holds_up_only_its_sender(
    clock: trio.abc.Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    run("webhooks.py", clock)
    assert capsys.readouterr().out.splitlines() == [
        "initech 2 the job was ended by its timeout of 1 s",
        "acme [0, 1, 2, 3, 4]",
        "globex [0, 1, 2, 3, 4]",
        "initech [0, 1, 3, 4]",
    ]


@pytest.mark.parametrize(
    ("name", "beginning"),
    [("quick_start.py", "import trio"), ("fastapi_app.py", "@asynccontextmanager")],
)
def test_the_readme_shows_examples_that_are_files(name: str, beginning: str) -> None:
    source = (ROOT / "examples" / name).read_text(encoding="utf-8")
    shown = source[source.index(beginning) :]
    assert f"```python\n{shown.strip()}\n```\n" in README


def test_the_moving_picture_is_that_of_the_recorded_run() -> None:
    assert draw_lanes.PICTURE.read_text("utf-8") == draw_lanes.draw(draw_lanes.record()), (
        "draw it again: python -m tools.draw_lanes"
    )


def test_in_the_moving_picture_a_session_is_in_order_and_a_slot_has_one_job() -> None:
    jobs = draw_lanes.record()
    assert len(jobs) == len(draw_lanes.QUESTIONS)
    for one, other in itertools.combinations(jobs, 2):
        if one.user == other.user or one.slot == other.slot:
            first, second = sorted([one, other], key=lambda job: job.started)
            assert first.ended <= second.started
        if one.user == other.user:
            assert (one.place < other.place) == (one.started < other.started)


def test_the_quick_start_has_twelve_lines() -> None:
    source = (ROOT / "examples" / "quick_start.py").read_text(encoding="utf-8")
    assert len([line for line in source[source.index("import trio") :].splitlines() if line]) == 12
