"""Signals: the first asks for an orderly end, the second for a quick one, others reset or reload.

One receiver takes all signals for as long as it listens. Each signal is acted on in a task of its
own, so that the next signal is received meanwhile: the second one while the first drain waits, and
both while a configuration is read.
"""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, final, runtime_checkable

import trio

from ._config.check import finite_seconds, seconds
from ._lifecycle.drain import DrainReport

logger: Final = logging.getLogger("trio_lanes")

_UNCATCHABLE: Final = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}


@runtime_checkable
class Stoppable(Protocol):
    """The object that signals act on: `Lanes`, or a layer above that ends and reloads as these."""

    @property
    def configure(self) -> Callable[..., object]: ...  # sync here, async there

    def close(self, reason: str, retry_after: float | None) -> object: ...
    def reset(self) -> object: ...
    async def wait_closing(self) -> object: ...
    async def wait_idle(self) -> object: ...
    async def drain(self, *, grace: float, cancel_grace: float) -> DrainReport: ...


async def shutdown_on_signals(
    lanes: Stoppable,
    *,
    grace: float,
    cancel_grace: float = 5.0,
    signals: Iterable[int] = (signal.SIGINT, signal.SIGTERM),
    retry_after: float | None = None,
    reset_signal: int | None = None,
    reload_signal: int | None = None,
    reload: Callable[[], object] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> DrainReport | None:
    """Drain ``lanes`` at the first signal, and cancel at the second. To be started in a nursery::

        async with trio.open_nursery() as nursery, open_lanes() as lanes:
            await nursery.start(partial(shutdown_on_signals, lanes, grace=30))
            await serve(app, config, shutdown_trigger=lanes.wait_closing)

    While it runs, it replaces the handlers of these signals; with SIGINT among them, no
    `KeyboardInterrupt` is raised. It ends when the lanes are closed, by a signal or by other code,
    and no job waits or runs any more. Then it restores the previous handlers: a later SIGTERM ends
    the process at once, as does a Ctrl-C by `KeyboardInterrupt`. A checkpoint. Only in Python's
    main thread.

    * The first of ``signals`` closes the lanes and drains them, as `Lanes.drain` does.
    * The second, of the same kind or another, cancels the jobs that are left, as a drain does at
      the end of its grace. Further signals change nothing.
    * ``reset_signal`` is `Lanes.reset`: running jobs are given up, waiting jobs start.
    * ``reload_signal`` calls ``reload`` and gives the result to `Lanes.configure`. If either
      raises, that is logged as an error, with the traceback, and nothing has changed.

    A signal that comes again before it is received counts once, as in every process. Cancelling
    this call restores the previous handlers, and leaves the lanes open if no signal came, else
    closed, with the jobs running.

    Args:
      grace: seconds in which work may end after the first signal; `math.inf` for no limit.
      cancel_grace: seconds in which it may end after it was cancelled; then it is given up as by
        `Lanes.reset`. It stays a child of the lanes' nursery.
      signals: the signals that end the lanes; at least one.
      retry_after: seconds after which a refused caller may try again; see `Lanes.close`.
      reset_signal: SIGUSR1, say.
      reload_signal: SIGHUP, say.
      reload: takes no arguments and returns the change: a mapping as for `Lanes.configure`, a
        tuple of such a mapping, or None, and of groups, or None if nothing changes.
        It may be async. A plain function is called in Trio's thread, and blocks all other tasks
        while it runs. A signal that comes during a reload starts another reload afterwards. A
        reload that is under way when the last job ends is cancelled.

    Returns:
      The report of the drain of the first signal, or of the second if that came; None if the lanes
      ended without a signal. The report is in the log as well.

    Raises:
      TypeError, ValueError: for a bad argument, before anything has changed.
      RuntimeError: outside of the main thread.
    """
    if not isinstance(lanes, Stoppable):
        raise TypeError(f"lanes must be Lanes, not {lanes!r}")
    seconds("grace", grace)
    seconds("cancel_grace", cancel_grace)
    if retry_after is not None:
        finite_seconds("retry_after", retry_after)
    meanings = _meanings(signals, reset_signal, reload_signal)
    if (reload_signal is None) != (reload is None):
        raise ValueError(
            "reload_signal and reload go together, "
            f"got reload_signal={reload_signal!r} and reload={reload!r}"
        )
    if reload is not None and not callable(reload):
        raise TypeError(f"reload must be a function, not {reload!r}")

    with trio.open_signal_receiver(*meanings) as received:
        task_status.started()
        async with trio.open_nursery() as nursery:
            ending = _LanesEnd(lanes, nursery, grace, cancel_grace, retry_after)
            nursery.start_soon(ending.wait_for_others)
            if reload is not None:
                reloading = _Reloading(lanes, reload)
                nursery.start_soon(reloading.keep_reloading)
            async for signum in received:
                name, meaning = _name(signum), meanings[signum]
                if meaning == "signals":
                    ending.signalled(name)
                elif meaning == "reset_signal":
                    logger.warning("%s: reset; %s running jobs were given up", name, lanes.reset())
                else:
                    reloading.signalled(name)
    return ending.report


# ---- arguments


def _meanings(signals: Any, reset_signal: Any, reload_signal: Any) -> dict[int, str]:
    """{signal: the argument that named it}."""
    if not isinstance(signals, Iterable):
        raise TypeError(f"signals must be an iterable of signals, not {signals!r}")
    named = [("signals", signum) for signum in dict.fromkeys(signals)]
    if not named:
        raise ValueError(f"signals must be at least one, got {signals!r}")
    for field, signum in (("reset_signal", reset_signal), ("reload_signal", reload_signal)):
        if signum is not None:
            named.append((field, signum))
    meanings: dict[int, str] = {}
    for field, signum in named:
        if isinstance(signum, bool) or not isinstance(signum, int):
            raise TypeError(f"{field} must be a signal, not {signum!r}")
        if signum not in signal.valid_signals() or signum in _UNCATCHABLE:
            raise ValueError(f"{field} must be a signal that can be caught, got {signum!r}")
        if signum in meanings:
            raise ValueError(f"{meanings[signum]} and {field} both name {_name(signum)}")
        meanings[signum] = field
    return meanings


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # one of the many real-time signals
        return f"signal {signum}"


# ---- acting


@final
class _LanesEnd:
    """The state of the end of the lanes."""

    def __init__(
        self,
        lanes: Stoppable,
        nursery: trio.Nursery,
        grace: float,
        cancel_grace: float,
        retry_after: float | None,
    ) -> None:
        self._lanes: Final = lanes
        self._nursery: Final = nursery
        self._grace: Final = grace
        self._cancel_grace: Final = cancel_grace
        self._retry_after: Final = retry_after
        self._drains: Final[list[trio.CancelScope]] = []  # of a gentle drain, then of a quick one
        self._cancels_at: float | None = None  # when the gentle drain cancels by itself
        self.report: DrainReport | None = None

    def signalled(self, name: str) -> None:
        """Begin to end, or make it quick."""
        now = trio.current_time()
        if self._cancels_at is None:
            logger.info("%s: draining, with %g s of grace", name, self._grace)
            self._lanes.close("draining", self._retry_after)
            self._cancels_at = now + self._grace
            self._begin_drain(self._grace)
        elif now < self._cancels_at:
            logger.warning("%s: cancelling the jobs that are left", name)
            self._cancels_at = now
            self._drains[0].cancel()
            self._begin_drain(0)

    def _begin_drain(self, grace: float) -> None:
        self._drains.append(trio.CancelScope())
        self._nursery.start_soon(self._drain, self._drains[-1], grace)

    async def _drain(self, scope: trio.CancelScope, grace: float) -> None:
        with scope:
            self.report = await self._lanes.drain(grace=grace, cancel_grace=self._cancel_grace)
            logger.info("drained: %s", self.report)
            self._nursery.cancel_scope.cancel()

    async def wait_for_others(self) -> None:
        """End when other code has ended the lanes."""
        await self._lanes.wait_closing()
        await self._lanes.wait_idle()
        if not self._drains:  # else the drain is about to make its report
            self._nursery.cancel_scope.cancel()


@final
class _Reloading:
    """Reloads, one at a time."""

    def __init__(self, lanes: Stoppable, reload: Callable[[], object]) -> None:
        self._lanes: Final = lanes
        self._reload: Final = reload
        self._wanted = trio.Event()
        self._name = ""  # of the signal that asked for it

    def signalled(self, name: str) -> None:
        """Reload soon: now, or again after the reload that is under way."""
        self._name = name
        self._wanted.set()

    async def keep_reloading(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                result = self._reload()
                if inspect.isawaitable(result):
                    result = await result
                if result is not None:
                    given = result if isinstance(result, tuple) else (result,)
                    configured = self._lanes.configure(*given)
                    if inspect.isawaitable(configured):
                        await configured
            except Exception:
                logger.exception("%s: the reload failed, and nothing has changed", self._name)
            else:
                logger.info("%s: reloaded", self._name)
