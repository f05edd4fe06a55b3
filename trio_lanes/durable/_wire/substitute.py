"""Substitutes: a store that an application names, and that its process reaches in another way.

A supervisor owns the file of its workers. Each worker runs the same application as a worker without
a supervisor does, so its lanes name the file; they get the supervisor's store instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

from .._contract.protocol import Store

Substitute: TypeAlias = Callable[[Store], Store]

_present: Final[ContextVar[Substitute | None]] = ContextVar("substitute of stores", default=None)


@contextmanager
def substituted(find: Substitute) -> Iterator[None]:
    """Let ``find`` say, inside of the block, which store lanes use for a store that they name."""
    token = _present.set(find)
    try:
        yield
    finally:
        _present.reset(token)


def substitute(store: Store) -> Store:
    """Return the store that lanes use for a store that they name: mostly itself."""
    find = _present.get()
    return store if find is None else find(store)
