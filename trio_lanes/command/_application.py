"""What ``app:lanes`` may be, and how it is found.

``app`` is a module, found from the current folder as by ``python -m``; ``lanes`` is a name in it,
with dots if need be. It is one of:

* an async context manager that gives `DurableLanes`: what `open_durable_lanes` returns;
* a function without arguments that returns one, which is called once. A function under
  `contextlib.asynccontextmanager` is such a function, and can open what handlers need around the
  lanes, and close it after their drain.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..durable import DurableLanes
from ._exits import CommandError


def find_object(named: str) -> Any:
    """Import what ``module:name`` stands for.

    Raises:
      CommandError: if there is no such thing, or importing it fails.
    """
    module_name, colon, names = named.partition(":")
    if not (module_name and colon and names):
        raise CommandError(f"{named!r} is not of the form module:name")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommandError(f"{module_name} cannot be imported: {what}") from error
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise CommandError(f"there is no {names} in {module_name}") from error
    return found


@asynccontextmanager
async def open_application(named: str) -> AsyncIterator[DurableLanes]:
    """Open the lanes that ``named`` stands for, for as long as the block.

    Raises:
      CommandError: if it stands for something else.
    """
    found = find_object(named)
    if _makes_something(found):
        found = found()
    if not isinstance(found, AbstractAsyncContextManager):
        raise CommandError(
            f"{named} must be what open_durable_lanes returns, or a function without arguments "
            f"that returns it, not {found!r}"
        )
    async with found as lanes:
        if not isinstance(lanes, DurableLanes):
            raise CommandError(f"{named} must give DurableLanes, not {lanes!r}")
        if lanes.local is None:
            raise CommandError(f"{named} has worker=False: it runs no jobs")
        yield lanes


def _makes_something(found: Any) -> bool:
    """Whether it is a plain function that can be called without arguments."""
    if isinstance(found, AbstractAsyncContextManager) or not callable(found):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):  # it wants arguments, or nobody knows what it wants
        return False
    return not inspect.iscoroutinefunction(found)
