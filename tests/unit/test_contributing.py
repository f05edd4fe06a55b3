"""What CONTRIBUTING.md says one can do, done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import PATIENCE, ROOT

pytestmark = pytest.mark.no_cover  # it reads the library, and runs none of it

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CODE = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", TEXT)


def names_of_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    }


def test_each_selection_selects_tests_and_each_name_of_a_test_is_one() -> None:
    names = names_of_tests()
    words = {word for text in CODE for word in re.findall(r"-k ([a-z]\w+)", text)}
    assert words
    assert [word for word in words if not any(word in name for name in names)] == []
    named = {text for text in CODE if re.fullmatch(r"test_\w+", text)}
    assert named
    assert named - names == set()


def test_each_path_is_there() -> None:
    inside = ("", "tests", "trio_lanes", "docs")
    paths = {
        word.rstrip("/")
        for text in CODE
        for word in re.split(r"[\s=]+", text)
        if re.fullmatch(r"[.\w]+(/[.\w]+)+/?|\w+\.(py|md|toml)", word)
    }
    made = {".venv/bin/pytest", ".venv/bin/ruff", "docs/_build"}
    assert len(paths) > 15
    there = [any((ROOT / folder / path).exists() for folder in inside) for path in paths - made]
    assert [path for path, is_there in zip(paths - made, there, strict=True) if not is_there] == []


def test_each_promise_has_tests_that_are_there() -> None:
    page = (ROOT / "docs/design-promises.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!promise|---)(.*?) \| (.*?) \|(?: (.*?))? \|$", page, re.M)
    assert len(rows) > 25
    for promise, about, by_chance in rows:
        files = re.findall(r"`([\w/]+\.py)`", about + by_chance)
        assert files, promise
        assert [name for name in files if not (ROOT / "tests" / name).exists()] == [], promise


def test_each_target_of_make_that_is_named_exists_and_each_that_exists_is_named() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: \$\(VENV\) (.*)$", makefile, re.M)
    named = set(re.findall(r"`make ([\w-]+)", TEXT))
    assert named == set(phony.split()) - {"node-modules"}


def test_the_first_change_makes_its_test_fail_and_without_it_the_test_passes(
    tmp_path: Path,
) -> None:
    (section,) = re.findall(r"^## A first change$(.*?)^## ", TEXT, re.M | re.S)
    (file,) = re.findall(r"`(trio_lanes/[\w/]+\.py)`", section)
    ((old, new),) = re.findall(r"^```diff\n-(.*\n)\+(.*\n)```$", section, re.M)
    (command,) = re.findall(r"`\.venv/bin/(pytest [^`]+)`", section)
    shutil.copytree(
        ROOT / "trio_lanes", tmp_path / "trio_lanes", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("tests", "tools", "examples", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    source = (tmp_path / file).read_text("utf-8")
    assert source.count(old) == 1

    def play() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command.split(), "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,  # the first place where modules are looked for
            env={name: text for name, text in os.environ.items() if "XDIST" not in name},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    passed = play()
    assert passed.returncode == 0, passed.stdout
    assert re.search(r"^\d+ passed", passed.stdout, re.M)
    (tmp_path / file).write_text(source.replace(old, new))
    failed = play()
    assert failed.returncode == pytest.ExitCode.TESTS_FAILED, failed.stdout
    assert re.search(r"^\d+ failed", failed.stdout, re.M)
