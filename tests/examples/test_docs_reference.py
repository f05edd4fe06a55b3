"""The reference has all public names, and no others."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

import trio_lanes
import trio_lanes.aio
import trio_lanes.aio.agents
import trio_lanes.durable
import trio_lanes.durable.testing
import trio_lanes.instruments
import trio_lanes.instruments.otel
import trio_lanes.instruments.prometheus
import trio_lanes.replay
import trio_lanes.testing

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def public_names(module: ModuleType) -> set[str]:
    """What a user may import from ``module``, that is not another's."""
    return {
        name
        for name, value in inspect.getmembers(module)
        if not name.startswith("_")
        and f"{getattr(value, '__module__', '')}.".startswith(f"{module.__name__}.")
        and not isinstance(value, TypeVar)
    }


def documented_names(module: str) -> set[str]:
    """What the pages of the reference say is in ``module``."""
    names = set()
    for page in REFERENCE.rglob("*.rst"):
        current = None
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)", page.read_text("utf-8"), re.M):
            if directive == "currentmodule":
                current = name
            elif directive != "automodule" and directive.startswith("auto") and current == module:
                names.add(name)
    return names


@pytest.mark.parametrize(
    "module",
    [
        trio_lanes,
        trio_lanes.aio,
        trio_lanes.aio.agents,
        trio_lanes.durable,
        trio_lanes.durable.testing,
        trio_lanes.instruments,
        trio_lanes.instruments.otel,
        trio_lanes.instruments.prometheus,
        trio_lanes.replay,
        trio_lanes.testing,
    ],
    ids=lambda module: module.__name__,
)
def test_the_reference_has_every_public_name_and_no_other(module: ModuleType) -> None:
    public = public_names(module)
    assert public
    assert documented_names(module.__name__) == public
