"""Calls with external answers: from a person who approves, or a client that runs its own tools.

The gate is one event with a value. It opens once, with the outputs of all calls together, or
cancelled. Until then it accepts no output, so no task ever sees some of the answers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio
from trio.lowlevel import enable_ki_protection

from .calls import AnyCall, ToolResult, call_id


class ActionGate:
    """A gate that opens when all of its calls have been answered from outside.

    ::

        gate = ActionGate(calls)            # shown to a person or a client
        results = await gate.wait()         # elsewhere: gate.submit({"call-1": "approved"})

    Inside a job, wait in ``async with current_job().yield_slot():``, so that the job lends its
    slot of the global lane during the wait, and keeps the slot of its session.

    Args:
      calls: `ToolCall` objects, mappings with an ``"id"``, or ids.

    Raises:
      TypeError, ValueError: for a call without an id, or for two calls with the same id.
    """

    def __init__(self, calls: Iterable[AnyCall]) -> None:
        self._ids: Final = [call_id(call) for call in calls]
        if repeated := [id for id, count in Counter(self._ids).items() if count > 1]:
            raise ValueError(f"calls are repeated: {_list(repeated)}")
        self._results: list[ToolResult] | None = None
        self._opened: Final = trio.Event()
        if not self._ids:
            self._open([])

    def __repr__(self) -> str:
        state = f"waits for {_list(self.missing)}" if self.missing else "open"
        return f"<trio_lanes.agents.ActionGate at {id(self):#x}, {state}>"

    @property
    def missing(self) -> tuple[str, ...]:
        """The ids of the calls that have no answer, in order: all of them, or none."""
        return tuple(self._ids) if self._results is None else ()

    async def wait(self) -> list[ToolResult]:
        """Wait for the answers, and return a result for each call, in order.

        The kind of each result is ``"result"``. If the gate was cancelled, the kind is
        ``"cancelled"`` and the value is the reason. A checkpoint. Any number of tasks may wait, any
        number of times; cancelling a wait does not change the gate.
        """
        await self._opened.wait()
        assert self._results is not None
        return list(self._results)

    @enable_ki_protection
    def submit(self, outputs: Mapping[str, Any]) -> None:
        """Answer all missing calls at once: ``{call id: output}``. Not a checkpoint.

        Raises:
          ValueError: if an id is unknown, missing, or repeated; it is repeated if its call has
            been answered or cancelled. The error names all such ids, and nothing has changed.
        """
        missing = self.missing
        wrong = {
            "unknown": [id for id in outputs if id not in self._ids],
            "missing": [id for id in missing if id not in outputs],
            "repeated": [id for id in outputs if id in self._ids and id not in missing],
        }
        if any(wrong.values()):
            text = "; ".join(f"{how}: {_list(ids)}" for how, ids in wrong.items() if ids)
            raise ValueError(f"the outputs were refused; {text}")
        if missing:
            self._open([ToolResult(id, "result", outputs[id]) for id in self._ids])

    @enable_ki_protection
    def cancel(self, reason: str | None = None) -> bool:
        """Cancel each call; False if the gate is open already. Not a checkpoint."""
        if self._results is not None:
            return False
        self._open([ToolResult(id, "cancelled", reason) for id in self._ids])
        return True

    def _open(self, results: list[ToolResult]) -> None:
        self._results = results
        self._opened.set()


def _list(ids: Iterable[str]) -> str:
    return ", ".join(map(repr, ids))
