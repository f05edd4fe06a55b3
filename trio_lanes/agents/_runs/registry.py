"""Which run is active in each session, and how others reach it.

A session has at most one active run. The registry holds it, neither starts nor stops it, and has
no task: all that changes it is synchronous, so between two checkpoints of whoever asks, what was
answered stays true.

A run is registered until it is cleared, by itself, or until another run is registered in its
session. In both cases whoever waits for its end is told at once. A run that was replaced may go on
for a while; when it then clears, it removes nothing, for what is cleared is that very object.

Sessions are named as for lanes: ``"alice"``, ``" alice "`` and ``"session:alice"`` are one.
"""

from __future__ import annotations

import enum
import logging
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol, final

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from trio_lanes import resolve_session_lane

_log: Final = logging.getLogger("trio_lanes.agents")

_SHORTEST_WAIT: Final = 0.1  # seconds: a run needs some passes of the scheduler to end at all


class Run(Protocol):
    """What a registry must know of a run: whether it hears, how to tell it and how to stop it."""

    @property
    def is_streaming(self) -> bool:
        """Whether it takes messages now."""
        ...

    @property
    def is_compacting(self) -> bool:
        """Whether it is rewriting its history, so that a message would be lost in it."""
        ...

    def queue_message(self, message: Any, /) -> bool:
        """Take ``message`` for the run's next boundary; False if it takes no more. Never blocks."""
        ...

    def abort(self, reason: str | None = None) -> None:
        """Ask the run to end soon. Never blocks."""
        ...


@final
class Registered(enum.Enum):
    """What `RunRegistry.register` did."""

    STARTED = "started"
    """The session had no active run."""
    REPLACED = "replaced"
    """The session had another one, which is now active no more."""


@final
class SendRefused(enum.Enum):
    """Why a message was not given to a run; asked in this order."""

    NO_ACTIVE_RUN = "no_active_run"
    """The session has none."""
    NOT_STREAMING = "not_streaming"
    """It has one, which does not listen now."""
    COMPACTING = "compacting"
    """It listens, but is rewriting its history."""
    STOPPED = "stopped"
    """The run itself said no, or failed when it was asked."""


@final
@attrs.frozen
class SendResult:
    """What became of a message: true if the run accepted it."""

    reason: SendRefused | None = None
    """Why it was refused; None if it was accepted."""

    def __bool__(self) -> bool:
        return self.reason is None


_ACCEPTED: Final = SendResult()


@final
@attrs.define(eq=False)
class _Active:
    """One registration."""

    session: str  # as it was given
    run: Run
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)


@final
class RunRegistry:
    """The active run of each session. It can be made anywhere, and needs no closing.

    Two lines are all that a run needs of it.

    ::

        with registry.running(session, run):
            await work()
    """

    def __init__(self) -> None:
        self._active: Final[dict[str, _Active]] = {}  # {the name of the session's lane: its run}

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.RunRegistry at {id(self):#x}, {len(self._active)} active>"

    @enable_ki_protection
    def register(self, session: str, run: Run) -> Registered:
        """Make ``run`` the active one of ``session``, in place of any other. Not a checkpoint.

        Who waits for the end of the other is told now. A run that is active there already
        stays, which counts as started.
        """
        lane = resolve_session_lane(session)
        other = self._active.get(lane)
        if other is not None and other.run is run:
            return Registered.STARTED
        self._active[lane] = _Active(session, run)
        if other is None:
            _log.info("run_started: session %r, %r", session, run)
            return Registered.STARTED
        other.ended.set()
        _log.info("run_replaced: session %r, %r instead of %r", session, run, other.run)
        return Registered.REPLACED

    @enable_ki_protection
    def clear(self, session: str, run: Run) -> bool:
        """Say that ``run`` has ended; whether it was the active one. Not a checkpoint.

        Only that very object is removed, so a run that ends late leaves its successor alone.
        """
        lane = resolve_session_lane(session)
        active = self._active.get(lane)
        if active is None or active.run is not run:
            return False
        del self._active[lane]
        active.ended.set()
        return True

    def running(self, session: str, run: Run) -> AbstractContextManager[Registered]:
        """``with registry.running(session, run):`` registers it, and clears it at the end."""
        return _Running(self, session, run)

    def get(self, session: str) -> Run | None:
        """The active run of ``session``, or None. Not a checkpoint."""
        active = self._active.get(resolve_session_lane(session))
        return None if active is None else active.run

    def active(self) -> dict[str, Run]:
        """Each session that has an active run, by the name that it was registered with, with it.

        A copy. Not a checkpoint.
        """
        return {active.session: active.run for active in self._active.values()}

    def send(self, session: str, message: Any) -> SendResult:
        """Give ``message`` to the active run of ``session``, if it takes it. Not a checkpoint.

        It never blocks and never raises: what the run raises is logged, and is a refusal.

        ::

            if not (sent := registry.send(session, text)):
                print("not now:", sent.reason)
        """
        active = self._active.get(resolve_session_lane(session))
        if active is None:
            return SendResult(SendRefused.NO_ACTIVE_RUN)
        run = active.run
        try:
            if not run.is_streaming:
                return SendResult(SendRefused.NOT_STREAMING)
            if run.is_compacting:
                return SendResult(SendRefused.COMPACTING)
            if run.queue_message(message):
                return _ACCEPTED
        except Exception:
            _log.exception("%r raised when it was sent a message: session %r", run, session)
        return SendResult(SendRefused.STOPPED)

    def abort(self, session: str, reason: str | None = None) -> bool:
        """Ask the active run of ``session`` to end; False if there is none. Not a checkpoint.

        The run stays registered until it has ended. What its own ``abort`` raises is raised.
        """
        run = self.get(session)
        if run is None:
            return False
        run.abort(reason)
        return True

    async def wait_ended(self, session: str, timeout: float = 15.0) -> bool:
        """Wait until the run that is active in ``session`` now has ended or is replaced.

        A checkpoint; cancelling it leaves nothing behind. A run that waits for its own end waits
        for the timeout.

        Args:
          timeout: seconds, at least 0.1; less is 0.1.

        Returns:
          False at the timeout; True if it ended in time, or if there was none.
        """
        return await _wait(self._active.get(resolve_session_lane(session)), timeout)

    async def abort_and_wait(
        self, session: str, reason: str | None = None, timeout: float = 15.0
    ) -> bool:
        """`abort` the run that is active in ``session`` now, and wait for its end.

        A checkpoint; cancelling it does not take back the abort. ``timeout`` and what is
        returned are as for `wait_ended`.
        """
        active = self._active.get(resolve_session_lane(session))
        if active is not None:
            active.run.abort(reason)
        return await _wait(active, timeout)


async def _wait(active: _Active | None, timeout: float) -> bool:
    if active is None:
        await trio.lowlevel.checkpoint()
        return True
    with trio.move_on_after(max(_SHORTEST_WAIT, timeout)):
        await active.ended.wait()
    return active.ended.is_set()


@final
class _Running:
    """`RunRegistry.running`: a class, since a signal cannot come between its two steps."""

    def __init__(self, registry: RunRegistry, session: str, run: Run) -> None:
        self._registry: Final = registry
        self._session: Final = session
        self._run: Final = run

    @enable_ki_protection
    def __enter__(self) -> Registered:
        return self._registry.register(self._session, self._run)

    @enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._registry.clear(self._session, self._run)
