"""What an engine must do to carry durable lanes: the `Store` protocol.

A `Store` object is one instance's hold on an engine. A store keeps jobs, decides which may be
claimed, and makes each of its calls one atomic act: it has happened as a whole when the call
returns, and not at all when it raises. What dies in between is told by the caller's point of view:

===========================  ==================================================================
the process dies             what the engine has, and what follows
===========================  ==================================================================
before `Store.enqueue`       nothing; the caller was told nothing
during it                    the job or nothing; the caller, not knowing, asks again by its key
after it                     the job, waiting
after `Store.step` claimed   the job, running under a fence; one crash more when it is found
after the handler's effect   the same: the effect is done again (its key or fence can prevent it)
during the finishing step    either of the two: finished, or running as before
after it                     the end, and the next of the session claimed or waiting
===========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from .records import (
    CheckReport,
    DurableStatistics,
    DurableStatus,
    Ended,
    Finish,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
    Opening,
    Step,
    StoreRules,
    Submission,
)
from .state import DurableState


class Store(Protocol):
    """One instance's hold on an engine.

    No call is left half done: where a caller is cancelled, the call ends first. All of them raise
    `StoreUnavailableError` for what may pass, having changed nothing, and another `StoreError`
    for what will not.
    """

    max_payload: int
    """The largest payload, result or checkpoint, in bytes of its JSON text."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[None]:
        """Connect, and write lanes that are absent. Leaving it forgets nothing and ends no run.

        Raises:
          StoreLockedError: if it is a worker, and the engine takes only one.
          StoreVersionError: if the engine holds what this version does not know.
        """

    async def join(self, lost: Sequence[tuple[int, int]] = ()) -> None:
        """Become a new incarnation, with a lease; and give back what those without one held.

        Args:
          lost: (id, fence) of runs that ended with the lease of the former incarnation, though
            its process is well: they are given back, and count as no crash.
        """

    async def leave(self) -> None:
        """End this incarnation cleanly. What it still runs is lost to it, as a crash."""

    async def beat(self) -> bool:
        """Prolong the lease, then give back what expired instances held.

        False: the lease is over, and this incarnation with it.
        """

    @property
    def leased(self) -> bool:
        """Whether there are leases at all; else `beat` need not be called."""

    def wake(self) -> AsyncIterator[None]:
        """A stream that says "look again". It may say so too often, and, now and then, too late."""

    # ---- jobs

    async def enqueue(self, batch: Sequence[Submission]) -> list[int]:
        """Accept all of them, in this order, or none. Returns their ids; a known key's is not new.

        Raises:
          UnknownLaneError, LaneFullError, KeyConflictError: for the first of which it is true.
        """

    async def step(self, finished: Sequence[Finish], room: int) -> Step:
        """Finish those, then claim up to ``room`` others, in one atomic act."""

    async def checkpoint(self, id: int, fence: int, data: str) -> bool:
        """Keep ``data`` for the next attempt; False if the fence is not the run's any more."""

    async def lend_slot(self, id: int, fence: int) -> bool:
        """Have the run take part in no limit; False if the fence is not the run's any more."""

    async def regain_slot(self, id: int, fence: int) -> bool | None:
        """Take the slot back: False if there is none yet; None if the fence is not the run's.

        Whoever was told False goes ahead of every claim, and asks again after each step.
        """

    async def wait(self, id: int) -> Ended | None:
        """Wait until the job has ended or is dead; None if it is not known. Cancellable."""

    # ---- control

    async def cancel(self, id: int, outcome: str) -> bool:
        """End a job that does not run; record it for one that does. False if it had ended."""

    async def clear(self, lane: str | None, session: str | None, outcome: str) -> int:
        """End what is waiting or parked in that lane, or of that session. Returns how many."""

    async def pause(self, lane: str | None, session: str | None, seconds: float) -> None:
        """Claim nothing there for that long; only ever prolongs. `math.inf`: until `resume`."""

    async def resume(self, lane: str | None, session: str | None) -> None:
        """Undo `pause`."""

    async def configure(
        self,
        lanes: Mapping[str, LaneLimit | int | float | None],
        groups: Mapping[str, GroupLimit] | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        """Set lanes: a number is the concurrency alone, None removes it. All of it, or nothing.

        Args:
          groups: the groups that replace all others, if given.
          rules: the fields of `StoreRules` to change, by name.

        Raises:
          ValueError: for the removal of a lane that has jobs, or is in a group; for a lane in two.
        """

    async def requeue(self, id: int) -> bool:
        """Take a dead or failed job back into line, with its attempts and crashes at 0.

        False if it is neither.
        """

    async def purge(
        self, id: int | None, lane: str | None, session: str | None, *, failed: bool = False
    ) -> int:
        """Forget dead jobs: all, or all of a lane or session; with ``failed`` also failed ones.

        With an ``id``, that dead or failed job. Returns how many.
        """

    # ---- inspection

    async def lanes(self) -> Mapping[str, LaneLimit]:
        """The lanes and their limits."""

    async def groups(self) -> Mapping[str, GroupLimit]:
        """The groups and their limits."""

    async def rules(self) -> StoreRules:
        """The rules that hold for all instances."""

    async def status(self, id: int) -> DurableStatus | None:
        """That job; None if it is not known."""

    async def jobs(
        self,
        states: Collection[DurableState],
        lane: str | None,
        session: str | None,
        after: int,
        limit: int,
    ) -> list[DurableStatus]:
        """Jobs in one of those states, with ids beyond ``after``, in order of their ids."""

    async def dead(
        self,
        lane: str | None,
        session: str | None,
        limit: int,
        *,
        after: int = 0,
        failed: bool = False,
    ) -> list[DurableStatus]:
        """Dead jobs with ids beyond ``after``, by id; with ``failed`` failed ones among them."""

    async def statistics(self) -> DurableStatistics:
        """How things stand."""

    async def instances(self) -> list[InstanceInfo]:
        """Who claims."""

    async def check(self, repair: bool) -> CheckReport:
        """Whether what is kept is consistent; and make it so, if asked."""
