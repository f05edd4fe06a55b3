"""How the core is built: the order of its packages, the writers of a job's record, its names."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trio_lanes

pytestmark = pytest.mark.no_cover  # it reads the library, and runs none of it

ROOT = Path(trio_lanes.__file__).parent

PACKAGES = (
    "_config",
    "_queue",
    "_limits",
    "_actors",
    "_observe",
    "_waiting",
    "_flow",
    "_lifecycle",
)
"""The packages of the core, each of which imports only packages before it."""

DOORS = len(PACKAGES)  # the modules directly in trio_lanes, which come after all packages

Module = tuple[str, ...]  # its dotted name below trio_lanes


@cache
def core() -> dict[Module, ast.Module]:
    """The syntax trees of the core, by module."""
    paths = [*ROOT.glob("*.py")]
    for package in PACKAGES:
        paths += (ROOT / package).rglob("*.py")
    return {
        path.relative_to(ROOT).with_suffix("").parts: ast.parse(path.read_text("utf-8"))
        for path in paths
    }


def layer(module: Module) -> int | None:
    """The place of ``module`` in the order; None if it is no part of the core."""
    if module[0] in PACKAGES:
        return PACKAGES.index(module[0])
    is_door = len(module) == 1 and not (ROOT / module[0]).is_dir()
    return DOORS if is_door else None


def imports(module: Module, tree: ast.Module) -> Iterator[tuple[Module, int]]:
    """Every module of trio_lanes that ``tree`` imports anywhere, TYPE_CHECKING or not; the line."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            names: list[Module] = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            above = ("trio_lanes", *module)[: -node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        for name in names:
            if name[0] == "trio_lanes":
                yield name[1:], node.lineno


def test_no_module_imports_from_a_package_above_its_own() -> None:
    upwards = []
    for module, tree in core().items():
        own = layer(module)
        assert own is not None
        for imported, line in imports(module, tree):
            above = layer(imported) if imported else DOORS
            if above is not None and above > own:
                upwards.append(f"{'/'.join(module)}:{line} imports {'.'.join(imported)}")
    assert upwards == []


def test_no_circle_of_imports_leads_across_packages() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, tree in core().items():
        if module[0] in PACKAGES:
            graph[module[0]] |= {
                imported[0]
                for imported, _ in imports(module, tree)
                if imported and imported[0] != module[0]
            }
    done: list[str] = []
    while len(done) < len(PACKAGES):
        free = [name for name in PACKAGES if name not in done and graph[name] <= {*done}]
        assert free, f"a circle among {[name for name in PACKAGES if name not in done]}"
        done += free


def fields_of_job(tree: ast.Module) -> set[str]:
    """The names of the private fields of `Job`."""
    (job,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Job")
    return {
        node.target.id
        for node in job.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id.startswith("_")
    }


def test_one_module_beside_that_of_job_writes_each_private_field_of_a_job() -> None:
    modules = core()
    fields = fields_of_job(modules["_actors", "job"])
    assert len(fields) > 20
    writers: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules.items():
        if module == ("_actors", "job"):
            continue
        for node in ast.walk(tree):
            # Plain, augmented and annotated assignments, deletions, loop targets: all store.
            if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                continue
            of_another_class = isinstance(node.value, ast.Name) and node.value.id == "self"
            if node.attr in fields and not of_another_class:
                writers[node.attr].add("/".join(module))
    assert writers  # the loop writes most of them
    assert {field: them for field, them in writers.items() if len(them) > 1} == {}


ACTORS: tuple[Module, ...] = tuple(
    ("_actors", name) for name in ("actor", "session", "lane", "group")
)

CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end"} | {
    "pop",
    "popitem",
    "popleft",
    "remove",
    "setdefault",
    "update",
}
"""The methods that change a container."""

WRITTEN_BY_OTHERS: dict[tuple[Module, str], str] = {
    (("_flow", "loop"), "touched"): "what it takes out of turn; a call each would be two a job",
    (("_flow", "loop"), "bound"): "each submission; a call would be one of the 46 of a job",
}
"""The exceptions, all of them on the way of every job, and why they are no calls."""


def attributes_of_actors() -> set[str]:
    """The names of all attributes that the classes of `ACTORS` set in themselves."""
    modules = core()
    names = {
        node.attr
        for module in ACTORS
        for node in ast.walk(modules[module])
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node)
    }
    return names - {"name", "_name"}  # jobs and views have names, too


def is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """What ``node`` assigns to, deletes, or changes by a method of a container."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield node
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in CHANGES:
        yield called.value


def attribute_in(node: ast.expr, other_names: dict[str, ast.Attribute]) -> ast.Attribute | None:
    """The attribute that ``node`` is, is an item of, or that a local name stands for."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return other_names.get(node.id)
    return node if isinstance(node, ast.Attribute) else None


def local_names(function: ast.AST) -> dict[str, ast.Attribute]:
    """{name: the attribute that ``function`` assigns to it}, as in ``line = lane.room_line``."""
    found: dict[str, ast.Attribute] = {}
    others: set[str] = set()  # that may stand for a copy
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(target.elts, node.value.elts, strict=True)]
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                    found[name.id] = value
                elif isinstance(name, ast.Name):
                    others.add(name.id)
    return {name: value for name, value in found.items() if name not in others}


def writes_to_others(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each attribute of an object other than ``self`` that ``tree`` changes, and the line."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            other_names = local_names(function)
            for node in ast.walk(function):
                for target in changed(node):
                    attribute = attribute_in(target, other_names)
                    if attribute is not None and not is_self(attribute):
                        yield attribute.attr, attribute.lineno


def test_no_other_module_changes_the_data_of_an_actor_or_a_group() -> None:
    names = attributes_of_actors()
    assert {"touched", "wake_at", "room_line", "forwarded", "bound", "used"} <= names
    found: set[tuple[Module, str]] = set()
    writers: list[str] = []
    for module, tree in core().items():
        for name, line in writes_to_others(tree):
            if name in names:
                found.add((module, name))
                if (module, name) not in WRITTEN_BY_OTHERS:
                    writers.append(f"{'/'.join(module)}:{line} changes {name}")
    assert writers == []
    assert found == WRITTEN_BY_OTHERS.keys()


def test_no_class_name_occurs_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in core().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append("/".join(module))
    assert {name: them for name, them in places.items() if len(them) > 1} == {}
