"""One worker: an application's durable lanes, from the first signal handler to the last line.

Signals are taken before the application is even imported, so there is no moment at which one kills
a process that has claimed something. Until the lanes are open a signal just ends the process; then
`shutdown_on_signals` has them; and what comes after the drain has somebody who is tired of waiting.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from typing import Final, final

import attrs
import trio

from .._lifecycle.drain import DrainReport
from .._lifecycle.shutdown import shutdown_on_signals
from ..durable import DurableLanes
from ._application import find_object, open_application
from ._children import Line
from ._exits import DONE, NO, CommandError, exit_code, first_leaf

logger: Final = logging.getLogger("trio_lanes.command")

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
RESETTING: Final = signal.SIGUSR1
RELOADING: Final = signal.SIGHUP


@final
@attrs.frozen(kw_only=True)
class WorkerOptions:
    """What ``trio-lanes worker`` was told about one process."""

    application: str
    grace: float
    cancel_grace: float
    reload: str | None = None
    """The function that SIGHUP calls; None: SIGHUP ends the worker, as SIGTERM does."""
    line: int | None = None
    """The descriptor of the line to a supervisor, if there is one."""

    @property
    def told(self) -> frozenset[int]:
        """The signals that end nothing."""
        return frozenset({RESETTING} if self.reload is None else {RESETTING, RELOADING})


async def work(options: WorkerOptions) -> int:
    """Run the application's lanes until a signal ends them. Returns the exit code."""
    worker = _Worker(options)
    try:
        with trio.open_signal_receiver(*ENDING, RESETTING, RELOADING) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.take_signals, signals, nursery.cancel_scope)
                await worker.run(nursery)
                nursery.cancel_scope.cancel()
    except Exception as error:
        if exit_code(first_leaf(error)) is None:  # nobody knows what it means without a traceback
            logger.exception("the application's lanes ended by an exception")
        raise
    if not worker.ready:
        logger.info("ended before it was ready")
    return worker.code


@final
class _Worker:
    """How far it has come."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options: Final = options
        self._report: DrainReport | None = None
        self.ready = False

    @property
    def code(self) -> int:
        return NO if self._report is not None and self._report.abandoned else DONE

    async def take_signals(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        """Before the lanes are open, and after they are drained: leave, whatever is going on."""
        async for signum in signals:
            if signum in self._options.told:
                continue
            everything.cancel()
            if self._report is not None and self._report.abandoned:
                # there are bodies that no cancellation reaches: end as if nobody took signals
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)

    async def run(self, nursery: trio.Nursery) -> None:
        options = self._options
        line = None if options.line is None else Line(options.line)
        if line is not None:
            nursery.start_soon(line.hold)
        reload = None if options.reload is None else find_object(options.reload)
        if reload is not None and not callable(reload):
            raise CommandError(f"{options.reload} must be a function, not {reload!r}")
        async with open_application(options.application) as lanes:
            if line is not None and not lanes._store.leased:
                raise CommandError(f"{lanes._store!r} takes one process: leave --processes out")
            async with trio.open_nursery() as stopping:
                await stopping.start(self._stop, lanes, reload)
                self.ready = True
                names = ", ".join(lanes._handlers)
                logger.info("ready: works on %r, with the handlers %s", lanes._store, names)
                if line is not None:
                    await line.say_ready()
            if self.code:
                logger.error("it waits for what did not end; another signal ends it all")
        logger.info("ended in order" if not self.code else "ended")

    async def _stop(
        self, lanes: DurableLanes, reload: object, *, task_status: trio.TaskStatus[None]
    ) -> None:
        options = self._options
        reloads = callable(reload)
        self._report = await shutdown_on_signals(
            lanes,
            grace=options.grace,
            cancel_grace=options.cancel_grace,
            signals=ENDING if reloads else (*ENDING, RELOADING),
            reset_signal=RESETTING,
            reload_signal=RELOADING if reloads else None,
            reload=reload if callable(reload) else None,
            task_status=task_status,
        )
