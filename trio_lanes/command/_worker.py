"""One worker process: runs the durable lanes of an application until a signal.

Signal handlers are installed before the application is imported, so a signal never kills a process
that has claimed jobs. Until the process is ready, a signal ends the process at once. Then
`shutdown_on_signals` handles signals. A signal after the drain ends a process that still waits for
bodies that do not end.

The end of the supervisor is no signal: it cancels all there is, at once. See `ParentConnection`.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, final

import attrs
import trio

from .. import DrainReport, shutdown_on_signals
from ..durable import DurableLanes, Store, StoreError
from ..durable._runs.lease import Lease, watching_leases
from ..instruments.logging import log_health
from ._application import NeedsLoop, find_application, find_object, open_application
from ._children import ParentConnection
from ._exits import DONE, NO, CommandError, exit_code, first_leaf
from ._served import ServedFile, served_file

logger: Final = logging.getLogger("trio_lanes.command")

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
RESETTING: Final = signal.SIGUSR1
RELOADING: Final = signal.SIGHUP
ENDS_WITHIN: Final = 30.0
"""Seconds in which a process without a supervisor ends, also if it has a longer lease."""


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
        with (
            trio.open_signal_receiver(*ENDING, RESETTING, RELOADING) as signals,
            ExitStack() as connection,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.take_signals, signals)
                with worker.everything:
                    await worker.run(nursery, connection)
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
        self._line: ParentConnection | None = None
        self._served: ServedFile | None = None
        self._leases: Final[list[Lease]] = []
        self._ended_instances, self._ended = trio.open_memory_channel[str](math.inf)
        self.everything: Final = trio.CancelScope()
        self.ready = False

    @property
    def code(self) -> int:
        return NO if self._report is not None and self._report.abandoned else DONE

    async def take_signals(self, signals: AsyncIterator[int]) -> None:
        """End the process at a signal that comes before it is ready, or after the drain."""
        async for signum in signals:
            if signum in self._options.forwarded:
                continue
            abandoned = self._report is not None and self._report.abandoned
            if self.everything.cancel_called or abandoned:
                # some code ignores its cancellation: end by the signal's default action
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)
            self.everything.cancel()

    # ---- the supervisor

    def _note_incarnation(self, lease: Lease, incarnation: str) -> None:
        # it is there for a further incarnation, which a process has that has lost its lease
        if lease not in self._leases:  # pragma: no branch
            self._leases.append(lease)
        if self._served is not None:
            self._served.joins(incarnation)
        if self._line is not None:
            self._line.say_joins(incarnation)

    def _time_left(self) -> float:
        """Return the seconds in which this process must end, if it can renew no lease."""
        now = time.monotonic()
        return min([now + ENDS_WITHIN, *(lease.ends for lease in self._leases)]) - now

    def _is_orphan(self) -> None:
        logger.error(
            "the parent of this process has ended: the jobs of this process are cancelled, and it"
            " ends, within %.1f s",
            self._time_left(),
        )
        if self._served is not None:
            self._served.is_gone()
        self.everything.cancel()

    async def run(self, nursery: trio.Nursery, connection: ExitStack) -> None:
        """Run the application's lanes; hear the supervisor until the end of ``connection``."""
        options = self._options
        reload = None if options.reload is None else find_object(options.reload)
        if reload is not None and not callable(reload):
            raise CommandError(f"{options.reload} must be a function, not {reload!r}")
        async with AsyncExitStack() as opened:
            opened.enter_context(watching_leases(self._note_incarnation))
            if options.served is not None:
                self._served = served_file(options.store, options.served)
                await opened.enter_async_context(self._served.used())
            found = find_application(options.application)
            # only now: if the application needs another loop, this is called there again
            line = self._line = None if options.line is None else ParentConnection(options.line)
            if line is not None:
                connection.enter_context(
                    line.heard(self._ended_instances.send_nowait, self._is_orphan, self._time_left)
                )
            application = open_application(options.application, found)
            lanes = await opened.enter_async_context(application)
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
                    line.say_ready()
            report = self._report
            if report is not None and report.abandoned:
                logger.error(
                    "the drain gave up %d jobs, whose bodies did not end when they were cancelled;"
                    " this process waits for them, and another signal kills it",
                    report.abandoned,
                )
        logger.info("all jobs have ended; the worker ends" if not self.code else "the worker ends")

    async def _declare_dead(self, store: Store) -> None:
        """Give back at once what incarnations ran whose end the supervisor reports."""
        async for instance in self._ended:
            try:
                await store.declare_dead(instance)
            except StoreError as error:
                logger.error(
                    "the jobs of instance %s, which has ended, could not be given back,"
                    " which the end of its lease does: %s",
                    instance,
                    error,
                )

    async def _stop(
        self, lanes: DurableLanes, reload: object, *, task_status: trio.TaskStatus[None]
    ) -> None:
        options = self._options
        reloads = callable(reload)
        async with trio.open_nursery() as until_then:
            until_then.start_soon(log_health, lanes)
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
            until_then.cancel_scope.cancel()
