"""The supervisor of N worker processes: starts, restarts and ends them, and forwards signals.

The first process is started alone, and the others when it is ready. So an error in the command
line, the application or the store is reported once, and ends all. Later a process that ends, in any
way, is restarted: after a short time, which doubles while the process does not last.

The end: the parent forwards its first signal, and a second one. Processes that have not ended after
``grace`` get SIGTERM, and after ``kill_after`` more SIGKILL.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ._children import Child, start_worker
from ._exits import CRASHED, DONE, NO, STORE_LOCKED, STORE_UNUSABLE, USAGE
from ._served import serve_file
from ._worker import ENDING, RELOADING, RESETTING, WorkerOptions

logger: Final = logging.getLogger("trio_lanes.command")

StartChild: TypeAlias = Callable[[], Awaitable[Child]]

BACKOFF: Final = (0.5, 30.0)
"""Seconds before a process is restarted: the first time (they double each time), and at most."""
LASTING: Final = 60.0
"""Seconds after which a process has lasted, so that `BACKOFF` begins anew."""
HOPELESS: Final = frozenset({USAGE, STORE_UNUSABLE, STORE_LOCKED})
"""Exit codes of the first process that the other processes would have as well."""
IN_ORDER: Final = frozenset({DONE, -signal.SIGTERM})
"""Exit codes of a clean end after a signal. SIGTERM ends a process that is not ready, or done."""


def signal_name(signum: int) -> str:
    """Return ``SIGTERM``, or ``signal 40`` for a signal without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


@final
class Supervisor:
    """Keeps ``processes`` children alive until a signal ends them.

    Args:
      start: starts a child.
      grace: seconds that the children have for a clean end.
      kill_after: seconds between SIGTERM at the end of the grace and SIGKILL.
      forwarded: signals that are forwarded and do not end the children.
    """

    def __init__(
        self,
        start: StartChild,
        processes: int,
        *,
        grace: float,
        kill_after: float,
        forwarded: Collection[int],
    ) -> None:
        self._start: Final = start
        self._processes: Final = processes
        self._grace: Final = grace
        self._kill_after: Final = kill_after
        self._forwarded: Final = forwarded
        self._children: Final[dict[int, Child]] = {}  # {number: child that lives}
        self._ready: Final[set[int]] = set()  # the numbers of children that are ready
        self._ended_instances: Final[list[str]] = []  # whose end was not reported to a child
        self._reporting: Final = trio.Lock()
        self._first_ready: Final = trio.Event()
        self._stop: Final = trio.Event()
        self._hurry: Final = trio.Event()
        self._code = DONE

    async def run(self, signals: AsyncIterator[int]) -> int:
        """Supervise until a signal comes and all have ended. Return the exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, signals)
            nursery.start_soon(self._insist)
            async with trio.open_nursery() as keepers:
                for number in range(1, self._processes + 1):
                    keepers.start_soon(self._keep, number)
            nursery.cancel_scope.cancel()
        logger.info(
            "all processes have ended%s", "" if self._code == DONE else ", some with an error"
        )
        return self._code

    # ---- one process

    async def _keep(self, number: int) -> None:
        if number > 1:
            await self._first_ready.wait()
        delay = BACKOFF[0]
        while not self._stop.is_set():
            began = trio.current_time()
            code = await self._live(number)
            if self._stop.is_set():
                return
            if not self._first_ready.is_set() and code in HOPELESS:
                self._code = code
                self._end()
                return
            if trio.current_time() - began >= LASTING:
                delay = BACKOFF[0]
            logger.warning("process %d is restarted in %g s", number, delay)
            with trio.move_on_after(delay):
                await self._stop.wait()
            delay = min(2 * delay, BACKOFF[1])

    async def _live(self, number: int) -> int:
        """Start a process, wait for its end, and return its exit code."""
        try:
            child = await self._start()
        except OSError as error:  # no memory, too many processes: it is tried again
            logger.error("process %d could not be started, which is tried again: %s", number, error)
            return CRASHED
        self._children[number] = child
        code: int | None = None
        try:
            logger.info("process %d started, pid %d", number, child.pid)
            if self._stop.is_set():  # the signal came during the start
                child.send_signal(signal.SIGTERM)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, number, child)
                code = await child.wait()
                nursery.cancel_scope.cancel()
        finally:
            del self._children[number]
            self._ready.discard(number)
            with trio.CancelScope(shield=True):
                child.hear_rest()
                await child.aclose()
                if code not in (DONE, None):  # else it has left the store, or may still live
                    self._ended_instances.extend(child.instances)
                    await self._report_ends()
        self._ended(number, child, code)
        return code

    async def _hear(self, number: int, child: Child) -> None:
        ready = trio.Event()

        def note() -> None:
            logger.info("process %d is ready", number)
            self._ready.add(number)
            self._first_ready.set()
            ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.hear, note)
            await ready.wait()
            await self._report_ends()

    async def _report_ends(self) -> None:
        """Report the ends of children to a child that is ready, if there is one."""
        async with self._reporting:
            while self._ready and self._ended_instances:
                child = self._children[min(self._ready)]
                await child.report_end(self._ended_instances.pop())

    def _ended(self, number: int, child: Child, code: int) -> None:
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        in_order = self._stop.is_set() and code in IN_ORDER
        level = logging.INFO if in_order else logging.ERROR
        logger.log(level, "process %d, pid %d, %s", number, child.pid, how)
        if self._stop.is_set() and not in_order:
            self._code = self._code or NO

    # ---- all of them

    def _end(self) -> None:
        self._stop.set()
        self._first_ready.set()  # nothing is started any more, so nothing has to wait for it

    async def _listen(self, signals: AsyncIterator[int]) -> None:
        async for signum in signals:
            logger.info("%s is forwarded to the processes", signal_name(signum))
            if signum in self._forwarded:
                for number in self._ready:  # the others read the new values at their start
                    self._children[number].send_signal(signum)
                continue
            if self._stop.is_set():
                self._hurry.set()
            self._end()
            for number, child in self._children.items():
                # a process that is not ready has no job, and may not handle other signals yet
                child.send_signal(signum if number in self._ready else signal.SIGTERM)

    async def _insist(self) -> None:
        """After the first signal: terminate, then kill, processes that do not end in time."""
        await self._stop.wait()
        with trio.move_on_after(self._grace):
            await self._hurry.wait()
        if not self._hurry.is_set():
            self._send_all(signal.SIGTERM)
        await trio.sleep(self._kill_after)
        self._send_all(signal.SIGKILL)

    def _send_all(self, signum: signal.Signals) -> None:
        for number, child in self._children.items():
            logger.warning(
                "process %d, pid %d, has not ended in time and gets %s",
                number,
                child.pid,
                signum.name,
            )
            child.send_signal(signum)


async def supervise(
    options: WorkerOptions, processes: int, kill_after: float, log_level: str
) -> int:
    """Run the application's lanes in several processes. Return the exit code."""
    arguments = [
        options.application,
        f"--grace={options.grace}",
        f"--cancel-grace={options.cancel_grace}",
        f"--log-level={log_level}",
    ]
    if options.reload is not None:
        arguments.append(f"--reload={options.reload}")
    with trio.open_signal_receiver(*ENDING, RESETTING, RELOADING) as signals:
        async with AsyncExitStack() as opened:
            if options.store is not None:
                socket = await opened.enter_async_context(serve_file(options.store))
                arguments += [f"--store=sqlite:{options.store}", f"--served={socket}"]
            supervisor = Supervisor(
                partial(start_worker, arguments),
                processes,
                grace=options.grace,
                kill_after=kill_after,
                forwarded=options.forwarded,
            )
            return await supervisor.run(signals)
