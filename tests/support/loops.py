"""The event loops of asyncio that tests run on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

EAGER: list[Any] = [getattr(asyncio, n) for n in ("eager_task_factory",) if hasattr(asyncio, n)]
"""Python 3.12 has a factory that runs the first step of a task where it is made."""


def uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def eager() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(*EAGER)
    return loop


LOOPS = [
    pytest.param(asyncio.SelectorEventLoop, id="asyncio"),
    pytest.param(uvloop, id="uvloop", marks=pytest.mark.needs("uvloop")),
]
ALL_LOOPS = [*LOOPS, *(pytest.param(eager, id="eager tasks") for _ in EAGER)]
