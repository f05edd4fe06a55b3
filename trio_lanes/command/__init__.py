"""The command ``trio-lanes``: runs workers, and inspects and controls a store.

It needs the extra ``command``; the library never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .._config.extras import how_to_install

if TYPE_CHECKING:
    from ..durable import Store

NEEDS = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``trio-lanes`` with arguments, by default of this process. Return the exit code."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        print(how_to_install("trio-lanes", " and ".join(missing), "command"), file=sys.stderr)
        return 2
    from ._cli import run

    return run(arguments)


def store_named(named: str) -> Store:
    """Return the store of a name such as ``sqlite:jobs.db`` or ``postgresql://host/app#lanes``.

    For applications that take the name of their store as an option, as ``trio-lanes --store`` does.
    The store is not opened; the lanes that open it make it if it does not exist. Not a checkpoint.

    Raises:
      ValueError: if the name is malformed, or a package that the store needs is not installed.
    """
    from ._exits import CommandError
    from ._stores import find_store

    try:
        return find_store(named, make=True)
    except CommandError as error:
        raise ValueError(str(error)) from None
