"""The house as a whole: its folders, their captions and bounds of lines, the names of tests."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import trio_lanes

ROOT = Path(trio_lanes.__file__).parent
TESTS = Path(__file__).parents[1]
CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"
DOCS = TESTS.parent / "docs"

# To raise a number is a line in a diff, which has to be defended: say in a comment beside it what
# the lines are for. Who makes a folder smaller lowers its number.
MAX_LINES = {
    # 50 of them: the root of a wait as a value, with what helps there; 85: what is wrong, as one;
    # 75: what the errors of a first hour teach and shared checks, for every door; 70: what
    # submissions under one key become; 60: weighted shares; 25: time zones, decimals
    "_config": 915,
    # 20 of them say when a line overtakes another by its aging; 95 are weights of owners
    "_queue": 680,
    # 25 of them: limits in words, and when a job in line may start; 260: limits that tune
    # themselves; 225: days and months of a calendar, the wall clock, and decimals
    "_limits": 1_105,
    # 135 of them: where waits went; 15 are for bodies that run outside of Trio; 40 are weights; 75
    # are for submissions that become one job
    "_actors": 3_610,
    "_observe": 725,  # 40 of them: overdue bodies without an instrument; 50: what is wrong
    # all that waits for lanes, 250 lines of which stood in _lifecycle, 290 for root causes, 130 for
    # where waits went, 25 of them so that they are added up when they are read; 15 for code outside
    # of Trio
    "_waiting": 1_945,
    # 10 of them: bodies that run outside of Trio; 125: submissions of one key
    "_flow": 2_430,
    "_lifecycle": 440,
    # 80 of the public doors end and refuse the waits of threads for room; 12 list the longest
    # waits; 20 hand the handle of `run` over; 30 are for submissions that become one job
    ".": 3_280,
    # At most 900 are code (tests/aio/test_size.py). 150 are the loop that waits for Trio in the
    # place of its thread, and the ends of a loop; 150 the doors of durable lanes; 75 the page
    "aio": 1_305,
    "replay": 990,  # 15 of them: amounts that are decimals
    # Below, schedules are 870 lines (155 of acts, 155 of Lua, 165 of due times, 120 of the verbs,
    # 110 of what fires them); further submissions under a key, and jobs that expire, are 480; fair
    # lanes with weights 650; budgets 500; children of runs 200; decimals and calendars 250;
    # aging in stores 160; the ends of jobs by outcome 110; what hears of quotas 25.
    "durable": 170,
    # 20 of them promote a parked job, 10 are runs by lane and live leases, 15 what keeps lanes
    "durable/acts": 1_420,
    "durable/_contract": 1_540,
    # 250 of them find the root of a wait, which no store has a rule for; 180 say what is wrong,
    # what failed, and what was looked at
    "durable/_lanes": 2_260,
    "durable/_memory": 405,
    "durable/_options": 805,
    "durable/_postgres": 1_640,
    # 100 of them are settings, which each of three tables had; 150 stood in _sql; 30 say who has
    # slots, and how many jobs are before one, and promote one; 35 say where the wait of a job went;
    # 75 are for affinity; 135 let a claim look at few of many lanes;
    # 100 note what keeps lanes from starts, for the waits of their jobs
    "durable/_rules": 3_766,
    "durable/_runs": 1_705,  # 160 of them are handles of jobs, which stood in _lanes
    # 30 of them look for a time among ids, which count; 10 read many ready lists
    "durable/_sqlite": 1_265,
    "durable/_sql": 1_849,  # 30 of them read many ready lists
    "durable/_valkey": 1_865,
    # 65 of them are runs by lane; 70 are for affinity; 135 let a claim look at few of many lanes;
    # 85 are for what keeps lanes from starts
    "durable/_valkey/lua": 5_380,
    "durable/_wire": 695,
    # 500 of them are incidents, whose roots each store must find; 35 are a rival of each twin;
    # 1,461 are stories of time, doubles and money, and draw them in lives and interleavings; 67 are
    # budgets with grants, children, debounces and aging in random lives; 41 a story of many lanes,
    # 37 of what keeps lanes from starts
    "durable/testing": 7_157,
    "instruments": 815,  # 90 of them are overdue bodies, problems, and waits by cause
    "agents": 60,
    "agents/_conversations": 1_665,
    "agents/_feeds": 155,
    # 50 of them so that no message is searched for in a long queue; of durable inboxes, 100 are for
    # edits (no store has an act for them), 90 for decisions, 60 for turns as runs and rollbacks
    "agents/_inbox": 2_740,
    "agents/_runs": 620,
    "agents/_tools": 715,
    # 400 of them are the search, what ended, the last hour, and jobs of a store, and of the
    # elements 180: their panel, the hour, addresses, and the time line by keyboard; 60 and 40: the
    # root of each lane's longest wait in its row, and what has ended in a store
    "monitor": 2_230,
    "monitor/static": 1_387,
    # 145 of them: health, failures, and roots of waits, also of a page; 145: schedules, budgets,
    # weights
    "command": 2_885,
}
"""The most lines of Python, Lua, JavaScript and CSS in a folder, without its subfolders."""

# Of these, 1,450 are for asyncio, 3,000 for the roots of waits, for where waits went, for what is
# wrong and what failed, on the page, in the core and over stores (600 of them are stories of the
# suite), 250 for affinity. 5,750 are for time, doubles and money: 4,300 of the library, of which
# fewer than 3,000 are code, and 1,450 of the suite. 270 are for aging in stores and the ends of
# jobs by outcome; 360 for claims that look at few of many lanes (40 of them a story);
# 245 for what keeps lanes from starts.
MAX_IN_ALL = 62_553
COUNTED = {".py", ".lua", ".js", ".css"}

SAME_IDEA = {
    **dict.fromkeys(
        ("Job", "Lane", "Lanes", "MapResults", "SessionLane"),
        "the same object, with verbs for Trio and with verbs for asyncio",
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
}
"""Names that stand twice, and the one idea that each of them stands for."""


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


def test_the_pages_for_users_have_at_most_30000_words() -> None:
    made = "changelog"  # by an include
    pages = [
        path
        for path in (TESTS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("[a-z]*/*.md"))
        if not is_for_contributors(path) and not path.name.startswith(made)
    ]
    assert len(pages) > 30
    found_by = re.compile(r"^```{index}.*?^```$", re.M | re.S)  # synonyms, which no page shows
    assert sum(len(found_by.sub("", path.read_text("utf-8")).split()) for path in pages) <= 30_000


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
