"""Registries of runs and feeds, for asyncio."""

from __future__ import annotations

from typing import TypeVar, final

from ... import agents as of_trio
from .._bridge import blocks, public_verbs
from .._durable import check_door

T = TypeVar("T")


@final
@public_verbs
class RunRegistry(of_trio.RunRegistry):
    """The active run of each session: `trio_lanes.agents.RunRegistry`, for asyncio."""


@final
@blocks("running")
@public_verbs
class SharedRunRegistry(of_trio.SharedRunRegistry):
    """The active runs on any instance: `trio_lanes.agents.SharedRunRegistry`, for asyncio.

    What a run has (``queue_message``, ``abort``), and ``outputs``, are called in the loop's thread,
    outside of its tasks, as the callbacks of a loop are.
    """

    _check_lanes = staticmethod(check_door)


@final
@public_verbs
class Feed(of_trio.Feed[T]):
    """A log of items for readers: `trio_lanes.agents.Feed`, for asyncio."""
