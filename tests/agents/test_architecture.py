"""The packages of `trio_lanes.agents` import each other in one direction only.

The imports are read from the syntax trees, so an import under ``TYPE_CHECKING`` or inside a
function counts as any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trio_lanes.agents

ROOT = Path(trio_lanes.agents.__file__).parent
NAME = "trio_lanes.agents"

ORDER = ["_feeds", "_runs", "_tools", "_conversations", "_inbox"]
"""The packages, one for each subject, lowest first: each may import from those before it."""

MODULES = sorted(ROOT.glob("*/*.py"))


def imported_names(path: Path) -> Iterator[str]:
    """Yield the full name of each module, or member of one, that the file imports."""
    package = [*NAME.split("."), *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_packages(path: Path) -> set[str]:
    """Return the packages of agents from which the file imports.

    An import from the public door is in here as the name that it imports, or as "".
    """
    names = [f"{name}." for name in imported_names(path)]
    return {name.split(".")[2] for name in names if name.startswith(NAME + ".")}


def test_every_package_has_a_place_in_the_order() -> None:
    assert {path.parent.name for path in MODULES} == set(ORDER)
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_module_imports_only_from_its_own_package_and_lower_ones(path: Path) -> None:
    allowed = ORDER[: ORDER.index(path.parent.name) + 1]
    assert imported_packages(path) <= set(allowed)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_names_of_modules_say_which_of_them_need_a_store(path: Path) -> None:
    uses_durable_lanes = any(
        f"{name}.".startswith("trio_lanes.durable.") for name in imported_names(path)
    )
    assert uses_durable_lanes == path.stem.startswith(("durable_", "shared_"))


def test_modules_inside_the_packages_have_public_names() -> None:
    assert [path for path in MODULES if path.stem.startswith("_") and path.stem != "__init__"] == []


def test_the_public_door_imports_from_every_package() -> None:
    assert imported_packages(ROOT / "__init__.py") == set(ORDER)
