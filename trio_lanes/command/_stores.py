"""The names of stores on the command line: ``sqlite:jobs.db``, ``postgresql://host/app#lanes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from .. import durable
from ..durable import SqliteStore, Store
from ._exits import STORE_UNUSABLE, CommandError


def find_store(named: str, make: bool = False) -> Store:
    """Return the store of a name; it is not opened.

    Args:
      make: whether a worker is to open it, which makes a store that does not exist.

    Raises:
      CommandError: if the name is malformed; or if the store does not exist, unless ``make``.
    """
    scheme, colon, rest = named.partition(":")
    if not colon or scheme not in _OPENERS or not rest:
        known = ", ".join(f"{scheme}:{what}" for scheme, (what, _) in _OPENERS.items())
        raise CommandError(f"{_shown(named)} does not name a store; use: {known}")
    return _OPENERS[scheme][1](rest, make)


def _shown(named: str) -> str:
    """Return a name that is none, for people; not if it may have a password."""
    return "this" if "@" in named or "=" in named else repr(named)


def sqlite_file(named: str) -> Path:
    """Return the path in ``sqlite:PATH``; the file need not exist.

    Raises:
      CommandError: if it is the name of another store, or malformed.
    """
    scheme, _, path = named.partition(":")
    if scheme != "sqlite" or not path:
        raise CommandError(f"{_shown(named)} does not name a SQLite file; use: sqlite:PATH")
    return Path(path).absolute()


def _sqlite(path: str, make: bool) -> Store:
    # only a worker makes the file, so that a misspelt path is an error
    if not make and not Path(path).is_file():
        raise CommandError(
            f"there is no store {path}: a worker makes it at its start", STORE_UNUSABLE
        )
    return SqliteStore(path)


def _server(kind: str, scheme: str) -> Callable[[str, bool], Store]:
    def find(rest: str, make: bool) -> Store:
        where, _, namespace = rest.partition("#")
        try:
            # only a worker makes the namespace, so that a misspelt name is an error
            found: Store = getattr(durable, kind)(
                f"{scheme}:{where}", namespace=namespace or "lanes", make=make
            )
        except (ImportError, ValueError) as error:
            raise CommandError(str(error)) from None
        return found

    return find


_OPENERS: Final[Mapping[str, tuple[str, Callable[[str, bool], Store]]]] = {
    "sqlite": ("PATH", _sqlite),
    "postgresql": ("//HOST/DATABASE[#NAMESPACE]", _server("PostgresStore", "postgresql")),
    **{
        scheme: ("//HOST[:PORT][/DATABASE][#NAMESPACE]", _server("ValkeyStore", scheme))
        for scheme in ("valkey", "valkeys", "redis", "rediss")
    },
    "unix": ("///PATH[?db=DATABASE][#NAMESPACE]", _server("ValkeyStore", "unix")),
}
