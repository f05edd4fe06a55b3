"""Half of what CI draws is fixed, and half is fresh, whose seed it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.fresh import FIXED
from tests.support.programs import PATIENCE, ROOT

DRAWING = """
import hypothesis, pytest
import hypothesis.strategies as st

from tests.support.chaos import examples

def note(what, value):
    with open({notes!r}, "a") as notes:
        print(what, value, file=notes)

@hypothesis.settings(max_examples=examples(6))
@hypothesis.given(number=st.integers(0, 2**60))
def test_one(number):
    note("one", hypothesis.core.global_force_seed)

@hypothesis.given(st.integers(0, 2**60))
def test_fails_with_what_is_fresh(number):
    assert hypothesis.core.global_force_seed == {fixed}

@pytest.mark.seeds(5)
def test_two(seed):
    note("two", seed)

@pytest.mark.many_seeds(4)
async def test_three(autojump_clock, scheduler_seed):
    note("three", scheduler_seed)
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a run in CI has told, and what its tests have noted."""
    folder = tmp_path_factory.mktemp("fresh")
    notes = folder / "notes"
    (folder / "test_drawing.py").write_text(DRAWING.format(notes=str(notes), fixed=FIXED))
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    where = ["-c", ROOT / "pyproject.toml", "--rootdir", folder, folder]
    environment = {name: text for name, text in os.environ.items() if "XDIST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *where],
        cwd=ROOT,
        env=environment | {"CI": "true", "CHAOS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.stdout, notes.read_text()


def noted(notes: str, what: str) -> list[int]:
    return [int(value) for name, value in map(str.split, notes.splitlines()) if name == what]


def seed_of(told: str) -> int:
    (seed,) = re.findall(r"^fresh examples: --hypothesis-seed=(\d+); .*=\1$", told, re.M)
    return int(seed)


def test_half_of_the_examples_of_a_property_are_fixed_and_half_are_fresh(
    played: tuple[str, str],
) -> None:
    told, notes = played
    assert noted(notes, "one") == [FIXED] * 3 + [seed_of(told)] * 3, told


def test_half_of_the_seeds_of_a_run_are_fresh_and_the_same_for_all_workers(
    played: tuple[str, str],
) -> None:
    told, notes = played
    seed = seed_of(told)
    assert sorted(noted(notes, "two")) == [0, 1, 2, seed, seed + 1]
    assert sorted(noted(notes, "three")) == [0, 1, seed, seed + 1]


def test_a_fresh_example_that_fails_says_how_it_is_played_again_and_kept(
    played: tuple[str, str],
) -> None:
    told, _ = played
    assert "1 failed, 10 passed" in told
    again = rf"--hypothesis-seed={seed_of(told)} 'test_drawing.py::test_fails_with_what_is_fresh'"
    assert again in told
    assert "Keep it: put @hypothesis.example" in told
