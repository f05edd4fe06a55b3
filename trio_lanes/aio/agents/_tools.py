"""Tool calls for asyncio: each tool is a task of the loop, which a task of Trio's awaits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, final

import attrs

from ... import agents as of_trio
from ...agents import ToolCall
from ...agents._tools.run import opened
from .._bodies import to_trio
from .._bridge import HostedInside, public_verbs, verbs


@final
@verbs("__anext__", "_emit")
class ToolRun(of_trio.ToolRun):
    """The calls of one `run_tools` block: `trio_lanes.agents.ToolRun`, for asyncio."""


def run_tools(
    calls: Iterable[ToolCall],
    *,
    limit: int | float = math.inf,
    order: Literal["call", "completion"] = "call",
    buffer: int | float = 64,
) -> AbstractAsyncContextManager[of_trio.ToolRun]:
    """Run tool calls at the same time, and read their events in order.

    `trio_lanes.agents.run_tools`, for tools of asyncio's. Cancelling a call is ``Task.cancel()`` of
    its task. ``emit`` raises a `RuntimeError` when its call has ended.
    """
    of_asyncio = tuple(_for_trio(call) for call in calls)
    return HostedInside(opened(ToolRun, of_asyncio, limit, order, buffer))


def _for_trio(call: Any) -> Any:
    if not isinstance(call, ToolCall):
        return call  # which is refused
    return attrs.evolve(call, fn=to_trio(call.fn))


@final
@public_verbs
class ActionGate(of_trio.ActionGate):
    """A gate for answers from outside: `trio_lanes.agents.ActionGate`, for asyncio."""
