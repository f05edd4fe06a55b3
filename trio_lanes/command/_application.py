"""The argument ``app:lanes``: finds an application, and opens its lanes.

``app`` is a module, found from the current folder as by ``python -m``; ``lanes`` is a name in it,
possibly with dots. The object of that name is one of:

* an async context manager that gives `DurableLanes`, as `open_durable_lanes` returns it;
* what `trio_lanes.aio.open_durable_lanes` returns, whose handlers are asyncio's: its ``trio`` is
  such a context manager, in a task of Trio's that its ``run`` runs;
* a function without arguments that returns one, and is called once. A function under
  `contextlib.asynccontextmanager` is such a function. It can open resources of the handlers before
  the lanes, and close them after the drain.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

from ..durable import DurableLanes
from ._exits import CommandError


def find_object(named: str) -> Any:
    """Import the object that ``module:name`` names.

    Raises:
      CommandError: if there is no such object, or its import fails.
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


@final
class NeedsLoop(CommandError):
    """The application is one of asyncio's, and has to be opened in its loop."""

    def __init__(self, application: Any) -> None:
        super().__init__("the application has to be opened in an asyncio loop")
        self.application: Final = application


_of_asyncio: Final[dict[str, Any]] = {}  # applications that were found, and need a loop


def find_application(named: str) -> AbstractAsyncContextManager[Any]:
    """Return what ``module:name`` names; call it if it is a function.

    Raises:
      NeedsLoop: if it has to be opened in an asyncio loop, where this is called again.
      CommandError: if the object is something else.
    """
    if named in _of_asyncio:
        found = _of_asyncio[named].trio
    else:
        found = find_object(named)
        if _makes_something(found):
            found = found()
        if hasattr(found, "trio") and hasattr(found, "run"):
            _of_asyncio[named] = found
            raise NeedsLoop(found)
    if not isinstance(found, AbstractAsyncContextManager):
        raise CommandError(
            f"{named} must be what open_durable_lanes returns, or a function without arguments "
            f"that returns it, not {found!r}"
        )
    return found


@asynccontextmanager
async def open_application(
    named: str, found: AbstractAsyncContextManager[Any]
) -> AsyncIterator[DurableLanes]:
    """Open the lanes of an application, for the time of a block.

    Raises:
      CommandError: if the object gives something else.
    """
    async with found as lanes:
        if not isinstance(lanes, DurableLanes):
            raise CommandError(f"{named} must give DurableLanes, not {lanes!r}")
        if lanes.local is None:
            raise CommandError(f"{named} has worker=False, so it runs no jobs: leave that out")
        yield lanes


def _makes_something(found: Any) -> bool:
    """Whether an object is a plain function that can be called without arguments."""
    if isinstance(found, AbstractAsyncContextManager) or not callable(found):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):  # it needs arguments, or has no signature
        return False
    return not inspect.iscoroutinefunction(found)
