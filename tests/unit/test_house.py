"""The house as a whole: its folders and their captions, circles of imports, the names of tests."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import trio_lanes
from tools import sizes

pytestmark = pytest.mark.no_cover  # it reads the library, and runs none of it

ROOT = Path(trio_lanes.__file__).parent
TESTS = Path(__file__).parents[1]
CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"
DOCS = TESTS.parent / "docs"

# The only bound of a size: `make sizes` prints the others. Who makes the largest circle smaller
# lowers it.
MOST_IN_A_CIRCLE = 4
COUNTED = {".py", ".lua", ".js", ".css"}

SAME_IDEA = {
    **dict.fromkeys(
        ("Job", "Lane", "Lanes", "MapResults", "SessionLane"),
        "the same object, with verbs for Trio and with verbs for asyncio",
    ),
    **dict.fromkeys(
        (
            *("ActionGate", "Conversation", "ConversationTurn", "DurableInbox", "DurableReceipt"),
            *("DurableTurn", "Feed", "Inbox", "Inboxes", "JsonlTranscript", "MemoryTranscript"),
            *("Receipt", "RunRegistry", "SharedRunRegistry", "SharedThreadLocks"),
            *("SharedTranscripts", "ThreadLocks", "ToolRun"),
        ),
        "a part for agents, with verbs for Trio and with verbs for asyncio",
    ),
    "SendResult": "the answer to a send, of a registry of runs and of a durable job",
    "TRANSITIONS": "the table of the states of a job, and of a durable job",
    **dict.fromkeys(
        ("WAITING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"),
        "a state of a job, and of a durable job",
    ),
    "REASONS": "why a job waits; durable jobs have more of them",
    "CURE": "what helps against a deadlock, in and over a store",
    "FEW_QUIET": "how many keys a table of last reports keeps without a look",
    "LOCK_WAIT": "how long the owner of a folder or a file is waited for",
    "ONE_REQUEST": "the cost of a start without a cost; whole numbers in a store",
    **dict.fromkeys(
        ("SCHEMA", "SCHEMA_VERSION", "MIGRATIONS"),
        "how the store in SQLite, and the one in PostgreSQL, makes and migrates its tables",
    ),
    **dict.fromkeys(
        ("LOOKS_EVERY", "PASSING", "RECONNECT_AFTER"),
        "how a client of a server looks again, tries again and connects again",
    ),
    **dict.fromkeys(
        ("Head", "Hint", "Image", "TryAgainError"),
        "how batches of a chain are made, over PostgreSQL and over a storage",
    ),
}
"""Names that stand twice, and the one idea that each of them stands for."""


def folders() -> set[str]:
    """The folders below trio_lanes that have such files, by their paths."""
    return {
        path.parent.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*")
        if path.suffix in COUNTED
    }


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
    assert folders_of_the_tree() == folders() - {"."}


def test_every_package_has_a_caption() -> None:
    doors = list(ROOT.rglob("__init__.py"))
    assert [
        path for path in doors if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ] == []


def test_no_circle_of_imports_has_more_modules_than_its_bound() -> None:
    """Imports for types count, too: who reads one module of a circle has to read them all."""
    found = sizes.circles(sizes.texts_here())
    assert [circle for circle in found if len(circle) > MOST_IN_A_CIRCLE] == []


def test_sizes_finds_circles_over_several_modules_and_for_types() -> None:
    texts = {
        "trio_lanes/__init__.py": "from .a import thing",
        "trio_lanes/a.py": "from .b import other\nif TYPE_CHECKING:\n    from trio_lanes import c",
        "trio_lanes/b/__init__.py": "def late():\n    from ..a import thing",
        "trio_lanes/c.py": "import trio_lanes.d",
        "trio_lanes/d.py": "from . import a",
        "trio_lanes/e.py": "import trio\nfrom .a import thing",
    }
    circle = ["trio_lanes.a", "trio_lanes.b", "trio_lanes.c", "trio_lanes.d"]
    assert sizes.circles(texts) == [circle]


def test_sizes_counts_neither_blank_lines_nor_comments_nor_docstrings_as_code() -> None:
    python = '"""A module.\n\nIt does."""\n\nX = (1,  # one\n     2)\n# no code\n'
    assert sizes.size("a.py", python) == (2, 2)
    assert sizes.size("a.lua", "-- a script\nlocal x = 1 -- one\n\n") == (1, 2)
    assert sizes.size("a.js", "/* a\npage */\nlet x = 'http://x'; // one\n") == (1, 3)


def test_names_of_tests_use_plain_words() -> None:
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    ]
    assert len(names) > 2000
    # "no waiter", "the caller", "unknown ..." say who or what it is
    vague = re.compile(r"_(nobody|whoever|what_is_no)(_|$)")
    assert [name for name in names if vague.search(name)] == []


def names_of(path: Path) -> Iterator[str]:
    """The classes and the constants that a module defines, without underscores in front."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.strip("_")
    for node in tree.body:
        assigned = isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if assigned else ():
            # a single letter is a variable of a type
            if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", target.id):
                yield target.id.strip("_")


def test_no_name_of_a_class_or_a_constant_stands_for_two_ideas() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for name in names_of(path):
            places[name].append(path.relative_to(ROOT).as_posix())
    twice = {name: them for name, them in places.items() if len(them) > 1}
    assert {name: them for name, them in twice.items() if name not in SAME_IDEA} == {}
    assert SAME_IDEA.keys() <= twice.keys()


# ---- the docs


def is_for_contributors(page: Path) -> bool:
    return page.name.startswith("design")


def test_the_pages_for_contributors_are_in_no_navigation_and_no_search() -> None:
    pages = [path for path in DOCS.glob("*.md") if is_for_contributors(path)]
    included = {"design-costs.md"}  # into another page
    assert len(pages) > len(included)
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith("---\norphan: true\nnosearch: true\n---\n") or page.name in included
        for path in DOCS.rglob("*.md"):
            for listed in re.findall(r"```{toctree}\n(.*?)```", path.read_text("utf-8"), re.S):
                assert page.stem not in listed.split(), path
