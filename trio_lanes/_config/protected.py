"""Async context managers that Ctrl-C cannot break on the way in or out.

A `contextlib.asynccontextmanager` drives its generator from frames of its own, in which Ctrl-C may
raise although the generator is protected: between the entry and the block, so that the block is
never left, or at its end, before the generator goes on. Here these frames are protected, too. The
block itself is the user's, and is not protected.

The class is derived from the class of `contextlib`, and does not wrap it: tools that walk the tree
of tasks, such as `stackscope`, find a nursery through the open context managers, and know how to
read the generator of that class.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, _AsyncGeneratorContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar, final

from trio.lowlevel import enable_ki_protection, in_trio_task

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


def needs_trio(name: str) -> None:
    """Refuse the call of ``name`` outside of Trio's tasks.

    Raises:
      RuntimeError: then; it names the function of that name for asyncio.
    """
    if not in_trio_task():
        raise RuntimeError(
            f"{name} needs a task of Trio's, as trio.run() runs it; "
            f"in asyncio, use trio_lanes.aio.{name.rpartition('.')[2]}"
        )


def not_iterable(self: object) -> NoReturn:
    """Refuse, as `__aiter__`, the easiest mistake in a `map`."""
    raise TypeError(
        "this is an async context manager, not an async iterator: write "
        "'async with lanes.map(...) as results:', and 'async for result in results:' inside it"
    )


def not_entered(self: object, name: str) -> NoReturn:
    """Refuse, as `__getattr__`, the easiest mistake of all: to use lanes that are not open."""
    raise AttributeError(
        f"this is an async context manager and has no {name!r}: write "
        f"'async with open_lanes(...) as lanes:', and 'lanes.{name}' inside it"
    )


@final
class _Protected(_AsyncGeneratorContextManager[T_co]):
    """The context manager of an async generator, entered and left under protection."""

    @enable_ki_protection
    async def __aenter__(self) -> T_co:
        return await super().__aenter__()

    @enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await super().__aexit__(kind, error, traceback)

    __aiter__ = not_iterable

    if not TYPE_CHECKING:  # where it would allow each name
        __getattr__ = not_entered


def protected_context(
    fn: Callable[P, AsyncIterator[T_co]],
) -> Callable[P, AbstractAsyncContextManager[T_co]]:
    """As `contextlib.asynccontextmanager`, but Ctrl-C raises only in the block."""
    enable_ki_protection(fn)

    @wraps(fn)
    def protected(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T_co]:
        return _Protected(fn, args, kwargs)  # type: ignore[arg-type]  # it is an async generator

    return protected
