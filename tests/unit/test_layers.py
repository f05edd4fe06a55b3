"""The layers above the core use the public names of the core only, and stand in an order.

The rules are checked on the syntax trees, so that imports under ``TYPE_CHECKING`` count:

* A layer imports only layers before it in the order, and the core imports none; only `testing`
  records for `replay`, and ``__main__`` is the command.
* No import names a private module of the core, except `_config`, which holds pure values: checks
  of arguments, names of lanes, exact numbers; and `_limits`, the arithmetic of rate limits, which
  the stores of durable lanes share. The command is a part of durable lanes, and may use their
  private modules and names, as may the metrics of a store, whose task is one of the lanes'; the
  monitor makes recordings, by the private modules of `replay`.
* A private attribute of another object is used only if a class of the same layer declares it and
  `Job`, `Lane`, `Lanes` and `SessionLane` have no private attribute of that name. So ``x._lane``
  cannot stand for the lane of a job, whatever the type of ``x``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trio_lanes

pytestmark = pytest.mark.no_cover  # it reads the library, and runs none of it

ROOT = Path(trio_lanes.__file__).parent
CORE_CLASSES = {"Job", "Lane", "Lanes", "SessionLane"}
LAYERS = ("replay", "durable", "instruments", "agents", "monitor", "command")
"""From the lowest to the highest: each imports only layers that stand before it."""
DOORS = ("aio",)
"""Packages that are doors, as the modules of `trio_lanes` itself: they may use all of the core, and
durable lanes, agents and the page, for which there is a door, too."""
PARTS_OF = {"command": ["durable"], "monitor": ["durable", "replay"], "instruments": ["durable"]}
OF_OTHERS = {"_value_", "_asdict", "_core", "_r", "_ALLOW_DETERMINISTIC_SCHEDULING"}
"""Names of `enum`, of named tuples, and of Trio's scheduler, which the simulation seeds."""

FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def files_of_the_core() -> Iterator[Path]:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in (*LAYERS, *DOORS):
            yield path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported_names(path: Path) -> Iterator[str]:
    """Yield the full name of each module, or member of one, that the file imports."""
    package = ["trio_lanes", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def private_members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the private names that a class declares: its fields, slots, methods, properties."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            if is_own(inner):
                yield inner.attr
        elif isinstance(inner, ast.AnnAssign | ast.Assign) and inner in node.body:
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from names
            if names == ["__slots__"] and inner.value is not None:
                yield from ast.literal_eval(inner.value)


def is_own(node: ast.Attribute) -> bool:
    """Whether an attribute is read from or written to ``self`` or ``cls``."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def classes(paths: list[Path]) -> Iterator[ast.ClassDef]:
    for path in paths:
        yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))


@cache
def private_names_of_the_core() -> frozenset[str]:
    """The private names of the public classes of the core and of the classes they inherit from."""
    core = list(files_of_the_core())
    known = list(classes(core))
    wanted = set(CORE_CLASSES)
    found: set[str] = set()
    while True:
        members = [node for node in known if node.name in wanted]
        found.update(name for node in members for name in private_members(node))
        bases = {base.id for node in members for base in node.bases if isinstance(base, ast.Name)}
        if bases <= wanted:
            return frozenset(filter(is_private, found))
        wanted |= bases


@cache
def private_names_of_the_layer(layer: str) -> frozenset[str]:
    files = sorted((ROOT / layer).rglob("*.py"))
    declared = {name for node in classes(files) for name in private_members(node)}
    return frozenset(filter(is_private, declared))


def named_by(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layers_imported_by(path: Path) -> set[str]:
    parts = [
        name.split(".")[1:2] for name in imported_names(path) if name.startswith("trio_lanes.")
    ]
    return {part for (part,) in parts if part in LAYERS}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_layers_below_it(layer: str) -> None:
    used = {name for path in (ROOT / layer).rglob("*.py") for name in layers_imported_by(path)}
    assert used <= set(LAYERS[: LAYERS.index(layer) + 1])


def test_the_core_imports_no_layer() -> None:
    using = {named_by(path): layers_imported_by(path) for path in files_of_the_core()}
    assert {name: used for name, used in using.items() if used} == {
        "testing.py": {"replay"},
        "__main__.py": {"command"},  # `python -m trio_lanes`
    }


def test_no_other_module_imports_a_door() -> None:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in DOORS:
            for name in imported_names(path):
                assert name.split(".")[1:2] not in [[door] for door in DOORS], named_by(path)


def test_a_door_uses_durable_lanes_agents_and_the_page_and_no_other_layer() -> None:
    for door in DOORS:
        for path in (ROOT / door).rglob("*.py"):
            assert layers_imported_by(path) <= {"durable", "agents", "monitor"}


def test_the_door_of_lanes_loads_nothing_of_agents() -> None:
    program = "import sys, trio_lanes.aio; print([m for m in sys.modules if 'agents' in m])"
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert done.stdout.split() == [b"[]"], done.stderr


@pytest.mark.parametrize("module", ["trio_lanes", "trio_lanes.testing", "trio_lanes.replay"])
def test_what_plain_lanes_need_loads_nothing_of_durable_lanes(module: str) -> None:
    program = f"import sys, {module}; print([m for m in sys.modules if m.endswith('.durable')])"
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert done.stdout.split() == [b"[]"], done.stderr


def test_the_rule_knows_the_private_names_of_the_core() -> None:
    private = set(filter(is_private, vars(trio_lanes.Job)))
    assert private
    assert private <= private_names_of_the_core()


@pytest.mark.parametrize("path", FILES, ids=named_by)
def test_no_layer_imports_a_private_module_of_the_core(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    for name in imported_names(path):
        outer, *rest = name.split(".")
        allowed = ["_config", "_limits", layer, *PARTS_OF.get(layer, ())]
        if outer == "trio_lanes" and rest and rest[0] not in allowed:
            assert not any(map(is_private, rest)), f"{named_by(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=named_by)
def test_no_layer_uses_a_private_attribute_of_the_core(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    own = private_names_of_the_layer(layer).union(
        *map(private_names_of_the_layer, PARTS_OF.get(layer, ()))
    )
    allowed = own - private_names_of_the_core()
    used = [
        f"{named_by(path)}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and not is_own(node)
        and node.attr not in allowed | OF_OTHERS
    ]
    assert used == []
