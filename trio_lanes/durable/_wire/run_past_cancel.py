"""`run_past_cancel`: a task of a connection, which goes on while its block is being cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio


async def run_past_cancel(
    scope: trio.CancelScope, task: Callable[..., Awaitable[None]], *args: Any, **options: Any
) -> None:
    """Run a task in a scope of its own.

    The store shields the scope while it is open. Then a cancellation of the block of the lanes does
    not end the connection, over which the runs are given back and the instance signs off.
    """
    with scope:
        await task(*args, **options)
