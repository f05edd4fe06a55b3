"""How a store is named on the command line: ``sqlite:jobs.db``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ..durable import SqliteStore, Store
from ._exits import STORE, CommandError


def find_store(named: str) -> Store:
    """That store, which must be there; nothing is opened yet.

    Raises:
      CommandError: if it is not, or the name is none.
    """
    scheme, colon, rest = named.partition(":")
    if not colon or scheme not in _SCHEMES or not rest:
        known = ", ".join(f"{scheme}:{what}" for scheme, (what, _) in _SCHEMES.items())
        raise CommandError(f"{named!r} names no store; what does: {known}")
    return _SCHEMES[scheme][1](rest)


def _sqlite(path: str) -> Store:
    # a worker makes the file; a person who misspells it wants to be told
    if not Path(path).is_file():
        raise CommandError(f"there is no store {path}: a worker makes it when it starts", STORE)
    return SqliteStore(path)


_SCHEMES: Final[Mapping[str, tuple[str, Callable[[str], Store]]]] = {"sqlite": ("PATH", _sqlite)}
