"""Async context managers that Ctrl-C cannot break on the way in or out.

Those of `contextlib.asynccontextmanager` drive their generator from frames of their own, in which
Ctrl-C may raise although the generator is protected: between the entry and the block, so that the
block is never left, or at its end, before the generator goes on. Here these frames are protected
too. The block itself is the user's, and is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Final, ParamSpec, TypeVar, final

from trio.lowlevel import enable_ki_protection

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


@final
class _Protected(AbstractAsyncContextManager[T_co]):
    """Another async context manager, entered and left under protection."""

    def __init__(self, inner: AbstractAsyncContextManager[T_co]) -> None:
        self._inner: Final = inner

    @enable_ki_protection
    async def __aenter__(self) -> T_co:
        return await self._inner.__aenter__()

    @enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


def protected_context(
    fn: Callable[P, AsyncIterator[T_co]],
) -> Callable[P, AbstractAsyncContextManager[T_co]]:
    """As `contextlib.asynccontextmanager`, but Ctrl-C raises only in the block."""
    make = asynccontextmanager(enable_ki_protection(fn))

    @wraps(fn)
    def protected(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T_co]:
        return _Protected(make(*args, **kwargs))

    return protected
