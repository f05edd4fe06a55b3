"""A job as a store of tables keeps it."""

from __future__ import annotations

from typing import final

import attrs

from .._contract.state import DurableState


@final
@attrs.define(kw_only=True)
class JobRecord:
    """A job as a store keeps it.

    ``place`` is its place in its session's line, which it has until it ends, also while it runs;
    None: it is in no line (it has ended, is not due yet, is dead, or has no session). ``ready`` is
    its place in the ready list of its lane and priority: only a job that could be claimed has
    one. ``shelf`` sets it aside there: its place is kept, and nobody looks at it.
    """

    id: int = 0
    name: str
    lane: str
    session: str | None
    priority: int
    payload: str
    key: str | None
    digest: str | None
    """Of the payload; only with a key."""
    timeout: float
    retry: str | None
    state: DurableState
    place: int | None = None
    ready: int | None = None
    shelf: int = 0
    due: float | None = None
    """When it is no longer parked; when it is forgotten, if it has ended."""
    why: str | None = None
    attempts: int = 0
    crashes: int = 0
    alone: int = 0
    """How many of the crashes happened while nothing else ran in that process."""
    company: int = 0
    """How many jobs ran in the process that crashed last, this one included; 0 again as soon as
    a run has ended without a crash."""
    fence: int = 0
    instance: str | None = None
    lent: int = 0
    """0: it holds its slot. 1: it has lent it. 2: it wants it back."""
    cancel: str | None = None
    """The recorded cancellation, as JSON text."""
    checkpoint: str | None = None
    outcome: str | None = None
    submitted_at: float


ON_LIST, UNHANDLED, SESSION_PAUSED = 0, 1, 2
"""The shelves."""

HOLDS_SLOT, LENT_SLOT, WANTS_SLOT = 0, 1, 2
"""What a running job does with its slot."""
