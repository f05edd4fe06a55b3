"""One worker process: runs the durable lanes of an application until a signal.

Signal handlers are installed before the application is imported, so a signal never kills a process
that has claimed jobs. Until the process is ready, a signal ends the process at once. Then
`shutdown_on_signals` handles signals. A signal after the drain ends a process that still waits for
bodies that do not end.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final, final

import attrs
import trio

from .. import DrainReport, shutdown_on_signals
from ..durable import DurableLanes, Store, StoreError
from ._application import NeedsLoop, find_object, open_application
from ._children import ParentConnection
from ._exits import DONE, NO, CommandError, exit_code, first_leaf
from ._served import served_by

logger: Final = logging.getLogger("trio_lanes.command")

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
RESETTING: Final = signal.SIGUSR1
RELOADING: Final = signal.SIGHUP


@final
@attrs.frozen(kw_only=True)
class WorkerOptions:
    """The options of ``trio-lanes worker`` for one process."""

    application: str
    grace: float
    cancel_grace: float
    reload: str | None = None
    """The function that SIGHUP calls; None: SIGHUP ends the worker, as SIGTERM does."""
    line: int | None = None
    """The descriptor of the connection to a supervisor, or None."""
    store: Path | None = None
    """The SQLite file of the application, if a supervisor owns it."""
    served: str | None = None
    """The socket at which the supervisor of this process serves the file."""

    @property
    def forwarded(self) -> frozenset[int]:
        """The signals that do not end the worker."""
        return frozenset({RESETTING} if self.reload is None else {RESETTING, RELOADING})


def run_worker(options: WorkerOptions) -> int:
    """Run the application's lanes until a signal ends them: in Trio, or in an asyncio loop."""
    try:
        return trio.run(work, options)
    except Exception as error:
        needs = first_leaf(error)
        if not isinstance(needs, NeedsLoop):
            raise
    code: int = needs.application.run(work, options)
    return code


async def work(options: WorkerOptions) -> int:
    """Run the application's lanes until a signal ends them. Return the exit code."""
    worker = _ThisWorker(options)
    try:
        with trio.open_signal_receiver(*ENDING, RESETTING, RELOADING) as signals:
            async with trio.open_nursery() as nursery:
                everything = trio.CancelScope()
                nursery.start_soon(worker.take_signals, signals, everything)
                with everything:
                    await worker.run(nursery)
                nursery.cancel_scope.cancel()
    except Exception as error:
        if exit_code(first_leaf(error)) is None:  # its message alone does not explain it
            logger.exception("an exception ended the application's lanes")
        raise
    if not worker.ready:
        logger.info("a signal ended this process before it was ready")
    return worker.code


@final
class _ThisWorker:
    """The state of a worker process."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options: Final = options
        self._report: DrainReport | None = None
        self._ended_pids, self._ended = trio.open_memory_channel[int](math.inf)
        self.ready = False

    @property
    def code(self) -> int:
        return NO if self._report is not None and self._report.abandoned else DONE

    async def take_signals(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        """End the process at a signal that comes before it is ready, or after the drain."""
        async for signum in signals:
            if signum in self._options.forwarded:
                continue
            abandoned = self._report is not None and self._report.abandoned
            if everything.cancel_called or abandoned:
                # some code ignores its cancellation: end by the signal's default action
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)
            everything.cancel()

    async def run(self, nursery: trio.Nursery) -> None:
        options = self._options
        line = None if options.line is None else ParentConnection(options.line)
        if line is not None:
            nursery.start_soon(line.hold, self._ended_pids.send_nowait)
        reload = None if options.reload is None else find_object(options.reload)
        if reload is not None and not callable(reload):
            raise CommandError(f"{options.reload} must be a function, not {reload!r}")
        async with (
            nullcontext() if options.served is None else served_by(options.store, options.served),
            open_application(options.application) as lanes,
        ):
            if line is not None and not lanes._store.leased:
                raise CommandError(
                    f"{lanes._store!r} takes one worker: leave --processes out, or give its file "
                    "with --store, so that the parent process serves it"
                )
            async with trio.open_nursery() as stopping:
                await stopping.start(self._stop, lanes, reload)
                nursery.start_soon(self._declare_dead, lanes._store)
                self.ready = True
                names = ", ".join(lanes._handlers)
                logger.info("ready: works on %r, with the handlers %s", lanes._store, names)
                if line is not None:
                    await line.say_ready()
            report = self._report
            if report is not None and report.abandoned:
                logger.error(
                    "the drain gave up %d jobs, whose bodies did not end when they were cancelled;"
                    " this process waits for them, and another signal kills it",
                    report.abandoned,
                )
        logger.info("all jobs have ended; the worker ends" if not self.code else "the worker ends")

    async def _declare_dead(self, store: Store) -> None:
        """Give back at once what processes ran whose end the supervisor reports."""
        async for pid in self._ended:
            try:
                await store.declare_dead(socket.gethostname(), pid)
            except StoreError as error:
                logger.error(
                    "the jobs of process %d could not be given back,"
                    " which the end of its lease does: %s",
                    pid,
                    error,
                )

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
