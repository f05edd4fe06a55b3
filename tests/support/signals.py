"""Signals that this process sends itself."""

import signal

from trio.testing import wait_all_tasks_blocked


async def hear(signum: int) -> None:
    """Raise the signal in this process, and wait until all tasks have acted on it."""
    signal.raise_signal(signum)
    await wait_all_tasks_blocked()
