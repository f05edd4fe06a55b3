"""The packages of `trio_lanes.durable`: imports go down only, and the doors import no engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trio_lanes.durable
import trio_lanes.durable.store

ROOT = Path(trio_lanes.durable.__file__).parent

ORDER = (
    "_contract",  # the `Store` protocol, its records, the states of a job, the errors
    "_options",  # values that users give, checked and made into records
    "_rules",  # the rules of scheduling, over tables
    "acts",  # what a store is asked: acts and questions, each with its rule
    "_wire",  # the calls of a store as messages
    "_sql",  # what the stores in SQL databases share
    "_chain",  # the store over a `Storage`
    "_memory",  # the store in memory
    "_sqlite",  # the store in a SQLite file
    "_postgres",  # the store in a schema of a PostgreSQL database
    "_valkey",  # the store in a Valkey or Redis server
    "_runs",  # one instance: it claims jobs, runs them, and keeps its lease
    "_lanes",  # the objects that users hold
    "store",  # the public door for authors of stores
    "storage",  # the public door for authors of engines
    "durable",  # the public door
    "testing",  # faulty clusters, random lives
)
"""From the lowest to the highest: each imports only packages that stand before it."""


def package_of(parts: tuple[str, ...]) -> str:
    """The package of a module, which is given as its path below `trio_lanes.durable`."""
    return parts[0] if parts else "durable"


def modules() -> dict[tuple[str, ...], Path]:
    """The file of each module, by its path below `trio_lanes.durable`."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return found


MODULES = modules()


def imports(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules below `trio_lanes.durable` that a module imports, anywhere in its text."""
    path = MODULES[parts]
    here = ("trio_lanes", "durable", *parts)
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        targets: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            targets = [(*base, alias.name) for alias in node.names]
        for target in targets:
            if target[:2] == ("trio_lanes", "durable"):
                inside = target[2:]
                yield inside if inside in MODULES else inside[:-1]


def test_every_package_has_its_place_in_the_order() -> None:
    assert {package_of(parts) for parts in MODULES} == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    used = {
        package_of(imported)
        for parts in MODULES
        if package_of(parts) == package
        for imported in imports(parts)
    }
    assert used <= set(ORDER[: ORDER.index(package) + 1])


def test_imports_for_type_checkers_are_counted() -> None:
    assert ("_sqlite", "store") in set(imports(()))
    assert ("_runs", "run") in set(imports(("_runs", "deadlock")))


def test_the_stores_do_not_import_each_other() -> None:
    stores = {"_chain", "_memory", "_sqlite", "_postgres", "_valkey"}
    for parts in MODULES:
        if package_of(parts) in stores:
            others = stores - {package_of(parts)}
            assert others.isdisjoint(map(package_of, imports(parts)))


def test_runs_and_what_users_hold_import_nothing_of_a_store() -> None:
    stores = {"_chain", "_memory", "_sql", "_sqlite", "_postgres", "_valkey"}
    for parts in MODULES:
        if package_of(parts) in {"_runs", "_lanes"}:
            assert stores.isdisjoint(map(package_of, imports(parts))), parts


def test_the_conformance_suite_uses_public_names_only() -> None:
    # so that it runs on the store of somebody else, and says what such a store must do
    private = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in Path(__file__).with_name("conformance").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
        if node.module.startswith("trio_lanes") and "._" in f"{node.module}.{alias.name}"
    ]
    assert private == []


def test_a_faulty_cluster_is_made_of_public_names_and_of_the_wire() -> None:
    for parts in MODULES:
        if package_of(parts) == "testing":
            used = {package_of(imported) for imported in imports(parts)}
            assert used <= {"durable", "testing", "_wire"}


def test_modules_of_private_packages_have_names_without_an_underscore() -> None:
    names = [part for parts in MODULES if parts[:1] != ("testing",) for part in parts[1:]]
    assert [name for name in names if name.startswith("_")] == []


def test_importing_the_tools_for_tests_does_not_import_sqlite3() -> None:
    program = "import sys, trio_lanes.durable.testing; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_door_has_the_sqlite_store_before_it_is_imported() -> None:
    program = (
        "import trio_lanes.durable\n"
        "assert 'SqliteStore' in dir(trio_lanes.durable)\n"
        "from trio_lanes.durable import *\n"
        "assert SqliteStore.__module__ == open_durable_lanes.__module__ == 'trio_lanes.durable'\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_star_imports_every_store_whose_extra_is_here() -> None:
    program = (
        "import sys, importlib.util\n"
        "here = importlib.util.find_spec\n"
        "hidden = sys.argv[1:]\n"
        "importlib.util.find_spec = lambda name: None if name in hidden else here(name)\n"
        "from trio_lanes.durable import *\n"
        "print(*sorted({'PostgresStore', 'SqliteStore', 'ValkeyStore'} & set(dir())))\n"
    )

    def stars(*hidden: str) -> str:
        command = [sys.executable, "-c", program, *hidden]
        return subprocess.run(command, timeout=60, capture_output=True, text=True).stdout.strip()

    assert stars() == "PostgresStore SqliteStore ValkeyStore"
    assert stars("psycopg", "coredis") == "SqliteStore"


def test_the_door_for_authors_of_stores_has_names_of_the_public_door() -> None:
    names = {
        name: value
        for name, value in vars(trio_lanes.durable.store).items()
        if not name.startswith("_") and not name.isupper()  # constants, for authors of stores
    }
    assert {"Store", "SubmittedJob", "Step", "DurableState", "StoreUnavailableError"} <= set(names)
    for name, value in names.items():
        assert getattr(trio_lanes.durable, name) is value
        assert value.__module__ == "trio_lanes.durable"


def test_a_name_that_the_door_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PaperStore'"):
        _ = trio_lanes.durable.PaperStore  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("store", "lacks", "message"),
    [
        ("PostgresStore", "psycopg", r"pip install 'trio-lanes\[postgres\]'"),
        ("ValkeyStore", "coredis.connection", r"pip install 'trio-lanes\[valkey\]'"),
        ("ValkeyStore", "trio_lanes.durable._valkey.lost", "lost"),
    ],
)
def test_a_store_whose_extra_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, store: str, lacks: str, message: str
) -> None:
    def import_module(name: str, package: str) -> None:
        raise ModuleNotFoundError("lost", name=lacks)

    monkeypatch.setattr(trio_lanes.durable, "import_module", import_module)
    with pytest.raises(ImportError, match=message):
        trio_lanes.durable.__getattr__(store)
