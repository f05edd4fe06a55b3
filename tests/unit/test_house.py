"""The house as a whole: its folders, their captions and bounds of lines, the names of tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import trio_lanes

ROOT = Path(trio_lanes.__file__).parent
TESTS = Path(__file__).parents[1]
CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"

# To raise a number is a line in a diff, which has to be defended: say in a comment beside it what
# the lines are for. Who makes a folder smaller lowers its number.
MAX_LINES = {
    "_config": 550,
    "_queue": 600,
    "_limits": 600,
    "_actors": 3_250,
    "_observe": 650,
    "_waiting": 1_300,
    "_flow": 2_250,
    "_lifecycle": 700,
    ".": 3_150,  # the public doors
    "replay": 1_100,
    "durable": 200,
    "durable/_contract": 1_350,
    "durable/_lanes": 1_600,
    "durable/_memory": 400,
    "durable/_options": 600,
    "durable/_postgres": 1_700,
    "durable/_rules": 3_850,  # 100 of them are settings, which each of three tables had
    "durable/_runs": 1_250,
    "durable/_sqlite": 1_350,
    "durable/_sql": 1_850,
    "durable/_valkey": 2_050,
    "durable/_valkey/lua": 4_500,
    "durable/_wire": 850,
    "durable/testing": 5_850,
    "instruments": 850,
    "agents": 100,
    "agents/_conversations": 1_700,
    "agents/_feeds": 200,
    "agents/_inbox": 2_550,  # 50 of them so that no message is searched for in a long queue
    "agents/_runs": 600,
    "agents/_tools": 750,
    "monitor": 1_900,
    "monitor/static": 1_200,
    "command": 2_800,
}
"""The most lines of Python, Lua, JavaScript and CSS in a folder, without its subfolders."""

MAX_IN_ALL = 53_250
COUNTED = {".py", ".lua", ".js", ".css"}


def lines_by_folder() -> dict[str, int]:
    """The lines of each folder below trio_lanes that has such files, by its path."""
    found: dict[str, int] = {}
    for path in ROOT.rglob("*"):
        if path.suffix in COUNTED:
            folder = path.parent.relative_to(ROOT).as_posix()
            lines = len(path.read_text("utf-8").splitlines())
            found[folder] = found.get(folder, 0) + lines
    return found


def folders_of_the_tree() -> set[str]:
    """The folders below trio_lanes in the tree of CONTRIBUTING.md, by their paths."""
    (tree,) = re.findall(r"^trio_lanes/\n((?: .*\n)+)", CONTRIBUTING.read_text("utf-8"), re.M)
    found: set[str] = set()
    above: list[str] = []
    for indent, name in re.findall(r"^((?:  )+)(\w+)/(?: |$)", tree, re.M):
        above[len(indent) // 2 - 1 :] = [name]
        found.add("/".join(above))
    return found


def test_the_tree_in_contributing_has_every_folder_and_no_other() -> None:
    assert folders_of_the_tree() == set(lines_by_folder()) - {"."}


def test_every_package_has_a_caption() -> None:
    doors = list(ROOT.rglob("__init__.py"))
    assert [
        path for path in doors if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ] == []


def test_no_folder_has_more_lines_than_its_bound() -> None:
    lines = lines_by_folder()
    assert set(lines) == set(MAX_LINES)
    above = {folder: count for folder, count in lines.items() if count > MAX_LINES[folder]}
    assert above == {}


def test_the_whole_has_no_more_lines_than_its_bound() -> None:
    assert sum(lines_by_folder().values()) <= MAX_IN_ALL


def test_names_of_tests_use_plain_words() -> None:
    names = [
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    assert len(names) > 2000
    # "no waiter", "the caller", "unknown ..." say who or what it is
    vague = re.compile(r"_(nobody|whoever|what_is_no)(_|$)")
    assert [name for name in names if vague.search(name)] == []
