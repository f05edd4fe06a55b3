"""Calls that somebody else answers: a person who approves, a client that runs its own tools.

The gate is one event with an answer. It opens once, with the outputs of all calls together, or
cancelled; before that nothing of it is taken, so nobody ever sees half of the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import trio
from trio.lowlevel import enable_ki_protection

from .calls import AnyCall, ToolResult, call_id


@final
class ActionGate:
    """Waits until every one of some calls has been answered from outside.

    ::

        gate = ActionGate(calls)            # shown to whoever is to answer
        results = await gate.wait()         # elsewhere: gate.submit({"call-1": "approved"})

    Inside a job, wait in ``async with current_job().yield_slot():``, so that the job lends its
    slot of the global lane meanwhile, and keeps its session's.

    Args:
      calls: `ToolCall` objects, mappings with an ``"id"``, or ids.

    Raises:
      TypeError, ValueError: for a call without an id, or for two with the same.
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
        """The ids of the calls that have no answer, in order: all, or none."""
        return tuple(self._ids) if self._results is None else ()

    async def wait(self) -> list[ToolResult]:
        """Wait for the answers; a result for each call, in order, of kind ``"result"``.

        If the gate was cancelled, each is of kind ``"cancelled"``, and has the reason for its
        value. A checkpoint. Any number of tasks may wait, any number of times; cancelling one
        leaves the gate as it is.
        """
        await self._opened.wait()
        assert self._results is not None
        return list(self._results)

    @enable_ki_protection
    def submit(self, outputs: Mapping[str, Any]) -> None:
        """Answer all calls that are missing at once: ``{call id: output}``. Not a checkpoint.

        Raises:
          ValueError: if an id is unknown, missing, or repeated, which is of a call that has been
            answered or cancelled. All of them are named, and nothing is taken.
        """
        missing = self.missing
        wrong = {
            "unknown": [id for id in outputs if id not in self._ids],
            "missing": [id for id in missing if id not in outputs],
            "repeated": [id for id in outputs if id in self._ids and id not in missing],
        }
        if any(wrong.values()):
            text = "; ".join(f"{how}: {_list(ids)}" for how, ids in wrong.items() if ids)
            raise ValueError(f"the outputs cannot be taken; {text}")
        if missing:
            self._open([ToolResult(id, "result", outputs[id]) for id in self._ids])

    @enable_ki_protection
    def cancel(self, reason: str | None = None) -> bool:
        """Give up: each call is cancelled. False if the gate is open already. Not a checkpoint."""
        if self._results is not None:
            return False
        self._open([ToolResult(id, "cancelled", reason) for id in self._ids])
        return True

    def _open(self, results: list[ToolResult]) -> None:
        self._results = results
        self._opened.set()


def _list(ids: Iterable[str]) -> str:
    return ", ".join(map(repr, ids))
