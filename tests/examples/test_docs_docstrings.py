"""The examples in docstrings run: with the names that they take for granted, as here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import signal
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trio_lanes
import trio_lanes.agents
import trio_lanes.durable
import trio_lanes.durable.testing
import trio_lanes.instruments
import trio_lanes.replay
import trio_lanes.testing
from trio_lanes import RateLimit
from trio_lanes.agents import ActionGate, Conversation, RunRegistry, ThreadLocks, ToolCall
from trio_lanes.durable import MemoryStore, open_durable_lanes

PACKAGES = [
    trio_lanes,
    trio_lanes.agents,
    trio_lanes.durable,
    trio_lanes.durable.testing,
    trio_lanes.replay,
    trio_lanes.testing,
    trio_lanes.instruments,
]


def documented(owner: Any, path: str) -> Iterator[tuple[str, str]]:
    """The docstrings of ``owner`` and of what is public in it, by name."""
    yield path, inspect.getdoc(owner) or ""
    if inspect.ismodule(owner) or inspect.isclass(owner):
        for name in dir(owner):
            try:
                value = getattr(owner, name)
            except ImportError:  # of an extra that is not installed: `make test-all` has it
                continue
            is_ours = str(getattr(value, "__module__", "")).startswith("trio_lanes")
            if not name.startswith("_") and is_ours and not inspect.ismodule(value):
                yield from documented(value, f"{path}.{name}")


def modules() -> list[ModuleType]:
    """The public ones, whether or not another test has imported them before."""
    instruments = pkgutil.iter_modules(trio_lanes.instruments.__path__)
    return PACKAGES + [
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


OVER_INSTANCES = (
    "trio_lanes.agents.Shared",
    "trio_lanes.durable.DurableLanes.lock",
    "trio_lanes.durable.DurableLanes.quota",
)


async def done(*arguments: object, **options: object) -> SimpleNamespace:
    """Do it; the answer has a size."""
    await trio.sleep(1)
    return SimpleNamespace(tokens=640)


async def reply(*words: str) -> str:
    await trio.sleep(1)
    return " ".join(words)


async def serve(
    app: object, config: object, *, shutdown_trigger: Callable[[], Awaitable[object]]
) -> None:
    """A server whose process is told to end."""
    signal.raise_signal(signal.SIGTERM)
    await shutdown_trigger()


async def model(prompt: object) -> AsyncIterator[str]:
    yield "A library "
    await trio.sleep(1)
    yield "for async I/O."


async def tool(emit: Callable[[object], Awaitable[None]]) -> int:
    await emit("half of it")
    return 5


class DurableTalk:
    """The events of a job that has ended, and the messages to a run that is lost."""

    async def events(self, *, after: int) -> AsyncIterator[tuple[int, object]]:
        yield after + 1, "half of it"

    async def messages(self) -> AsyncIterator[object]:
        yield "and quickly"

    @asynccontextmanager
    async def children(self) -> AsyncIterator[object]:
        yield SimpleNamespace(submit=done, wait_all=done)


def answered_gate(lanes: trio_lanes.Lanes, calls: list[ToolCall]) -> ActionGate:
    """A gate, and somebody elsewhere who answers after a while."""
    gate = ActionGate(calls)

    async def somebody() -> None:
        await trio.sleep(60)
        gate.submit(dict.fromkeys(gate.missing, "approved"))

    lanes.start_soon(somebody)
    return gate


def names(where: str, lanes: trio_lanes.Lanes) -> dict[str, Any]:
    """What the example that stands there takes for granted."""
    taken = {name: value for module in reversed(PACKAGES) for name, value in vars(module).items()}
    taken |= {
        "lanes": lanes,
        "reply": reply,
        "texts": ["one", "two"],
        "answer": SimpleNamespace(status_code=429, headers={"Retry-After": "2"}),
        "fetch": reply,
        "urls": ["http://a.example/1", "http://b.example/2"],
        "host_of": lambda url: url.split("/")[2],
        "partial": partial,
        "Decimal": Decimal,
        "serve": serve,
        "config": None,
        "app": SimpleNamespace(post=lambda path: lambda handler: handler),  # of a web framework
        "ActionGate": partial(answered_gate, lanes),
        "calls": [ToolCall("call-1", tool), ToolCall("call-2", tool)],
        "show": print,
        "conversation": Conversation("alice"),
        "model": model,
        "ask_the_model": lambda messages: reply(*messages),
        "registry": RunRegistry(),
        "run": object(),
        "session": "alice",
        "text": "hello",
        "work": reply,
        "locks": ThreadLocks(),
        "write_both": reply,
    }
    if where.startswith("trio_lanes.durable"):
        taken["answer"] = lambda payload: reply(payload["text"])
        taken["SqliteStore"] = lambda path: MemoryStore()  # a file takes real time
        taken |= {"run": DurableTalk(), "history": [], "last_seen": 0, "urls": ["/"]}
    if where.startswith("trio_lanes.durable.DurableJob.events"):
        taken["lanes"] = SimpleNamespace(job=lambda id: DurableTalk())
    return taken


def test_there_are_examples() -> None:
    here = {where.rpartition(" ")[0] for where in EXAMPLES}
    assert {"trio_lanes.open_lanes", "trio_lanes.testing"} <= here
    assert {"trio_lanes.agents.Inbox", "trio_lanes.durable.open_durable_lanes"} <= here


@pytest.mark.parametrize("where", EXAMPLES)
async def test_an_example_in_a_docstring_runs(where: str, autojump_clock: MockClock) -> None:
    block = f"async def block():\n{textwrap.indent(EXAMPLES[where], '    ')}\n    return locals()"
    quotas = {"openai": [RateLimit(60), RateLimit(900, unit="tokens")]}
    async with (
        trio_lanes.open_lanes({"main": 4}) as lanes,
        open_durable_lanes(MemoryStore(), {}, quotas=quotas) as durable,
    ):
        namespace = names(where, lanes)
        if where.startswith(OVER_INSTANCES):
            namespace |= {"lanes": durable, "write_both": done, "rebuild": done}
            namespace |= {"ask": done, "question": "how?"}
        exec(compile(block, f"<{where}>", "exec"), namespace)
        for name, value in (await namespace["block"]()).items():
            if name.startswith("test_"):
                await value(autojump_clock)
