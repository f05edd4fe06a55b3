"""A handler that does what a test says, and a look at what becomes of messages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import outcome
import trio
from trio.testing import wait_all_tasks_blocked

from trio_lanes import Lanes
from trio_lanes.agents import Inbox, Receipt, Turn


class Stage:
    """Every turn goes on until the test ends it."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.times: list[float] = []  # of their starts
        self.cleanup = 0.0  # seconds for which a cancelled turn shields itself
        self.lends = False  # whether a turn lends its slot while it goes on
        self.first: Receipt | None = None
        self._ends: dict[Turn, trio.Event] = {}
        self._how: dict[Turn, outcome.Outcome[Any]] = {}

    async def handler(self, turn: Turn) -> Any:
        self.turns.append(turn)
        self.times.append(trio.current_time())
        self._ends[turn] = trio.Event()
        try:
            async with turn.job.yield_slot() if self.lends else nullcontext():
                await self._ends[turn].wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.cleanup)
            raise
        return self._how[turn].unwrap()

    @property
    def turn(self) -> Turn:
        """The newest."""
        return self.turns[-1]

    @property
    def started(self) -> list[list[Any]]:
        """What each turn was started with."""
        return [turn.messages for turn in self.turns]

    async def end(self, value: Any = None, turn: Turn | None = None) -> None:
        """Have the newest turn return ``value``, and see what that brings."""
        await self._end(outcome.Value(value), turn)

    async def fail(self, error: BaseException, turn: Turn | None = None) -> None:
        """Have the newest turn raise ``error``."""
        await self._end(outcome.Error(error), turn)

    def tell(self, error: BaseException | None) -> None:
        """Have the newest turn return, or raise ``error``, when it is its turn to run."""
        if self.turn not in self._how:
            self._how[self.turn] = outcome.Value(None) if error is None else outcome.Error(error)
            self._ends[self.turn].set()

    async def _end(self, how: outcome.Outcome[Any], turn: Turn | None) -> None:
        turn = self.turn if turn is None else turn
        self._how[turn] = how
        self._ends[turn].set()
        await wait_all_tasks_blocked()


async def busy(lanes: Lanes, stage: Stage, **options: Any) -> Inbox:
    """An inbox with an active turn, which was started with "first"."""
    inbox = Inbox(lanes, "alice", stage.handler, **options)
    stage.first = inbox.post("first")
    await wait_all_tasks_blocked()
    assert stage.started == [["first"]]
    return inbox


def kinds(receipts: Iterable[Receipt]) -> list[str]:
    """What became of them; what waits, or is in a turn, says so."""
    return [
        receipt.state.value if receipt.outcome is None else receipt.outcome.kind.value
        for receipt in receipts
    ]
