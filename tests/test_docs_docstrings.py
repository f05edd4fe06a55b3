"""The examples in docstrings run: with the names that they take for granted, as here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import signal
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trio_lanes
import trio_lanes.instruments
import trio_lanes.testing


def documented(owner: Any, path: str) -> Iterator[tuple[str, str]]:
    """The docstrings of ``owner`` and of what is public in it, by name."""
    yield path, inspect.getdoc(owner) or ""
    if inspect.ismodule(owner) or inspect.isclass(owner):
        for name, value in inspect.getmembers(owner):
            is_ours = str(getattr(value, "__module__", "")).startswith("trio_lanes")
            if not name.startswith("_") and is_ours and not inspect.ismodule(value):
                yield from documented(value, f"{path}.{name}")


def modules() -> list[ModuleType]:
    """The public ones, whether or not another test has imported them before."""
    packages = [trio_lanes, trio_lanes.testing, trio_lanes.instruments]
    instruments = pkgutil.iter_modules(trio_lanes.instruments.__path__)
    return packages + [
        importlib.import_module(f"trio_lanes.instruments.{module.name}")
        for module in instruments
        if not module.name.startswith("_")
    ]


def examples() -> dict[str, str]:
    """The code after ``::`` in docstrings, by where it stands; what is inherited stands once."""
    found: dict[str, str] = {}
    for module in modules():
        for path, text in documented(module, module.__name__):
            for number, block in enumerate(re.findall(r"::\n\n((?:    .*\n|\n)+)", text + "\n"), 1):
                if textwrap.dedent(block) not in found.values():
                    found[f"{path} {number}"] = textwrap.dedent(block)
    return found


EXAMPLES = examples()


async def reply(*words: str) -> str:
    await trio.sleep(1)
    return " ".join(words)


async def serve(
    app: object, config: object, *, shutdown_trigger: Callable[[], Awaitable[object]]
) -> None:
    """A server whose process is told to end."""
    signal.raise_signal(signal.SIGTERM)
    await shutdown_trigger()


def names(lanes: trio_lanes.Lanes) -> dict[str, Any]:
    """What the examples take for granted."""
    public = {**vars(trio_lanes), **vars(trio_lanes.testing), **vars(trio_lanes.instruments)}
    return {
        **public,
        "lanes": lanes,
        "reply": reply,
        "texts": ["one", "two"],
        "answer": SimpleNamespace(status_code=429, headers={"Retry-After": "2"}),
        "fetch": reply,
        "urls": ["http://a.example/1", "http://b.example/2"],
        "host_of": lambda url: url.split("/")[2],
        "partial": partial,
        "serve": serve,
        "config": None,
        "app": SimpleNamespace(post=lambda path: lambda handler: handler),  # of a web framework
    }


def test_there_are_examples() -> None:
    assert {"trio_lanes.open_lanes 1", "trio_lanes.testing 1"} <= EXAMPLES.keys()


@pytest.mark.parametrize("where", EXAMPLES)
async def test_an_example_in_a_docstring_runs(where: str, autojump_clock: MockClock) -> None:
    block = f"async def block():\n{textwrap.indent(EXAMPLES[where], '    ')}\n    return locals()"
    async with trio_lanes.open_lanes({"main": 4}) as lanes:
        namespace = names(lanes)
        exec(compile(block, f"<{where}>", "exec"), namespace)
        for name, value in (await namespace["block"]()).items():
            if name.startswith("test_"):
                await value(autojump_clock)
