"""The registry of active runs: the run of each session, and the ways to reach it.

A session has at most one active run. The registry does not start or stop runs, and has no task. All
its changes are synchronous, so an answer stays true until the next checkpoint of the caller.

A run is registered until it clears itself, or until another run is registered in its session. Both
wake the tasks that wait for its end. A replaced run may go on for a while. When it clears itself
later, nothing is removed, because `RunRegistry.clear` compares the run object.

Session names are normalized as for lanes: ``"alice"``, ``" alice "`` and ``"session:alice"`` name
the same session.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, final

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from trio_lanes import resolve_session_lane

_log: Final = logging.getLogger("trio_lanes.agents")

SHORTEST_WAIT: Final = 0.1  # seconds: a run needs a few passes of Trio's scheduler to end


class Run(Protocol):
    """The interface of a run: whether it takes messages, how to send one, and how to stop it."""

    @property
    def is_streaming(self) -> bool:
        """Whether the run takes messages now."""
        ...

    @property
    def is_compacting(self) -> bool:
        """Whether the run is rewriting its history, in which a message would be lost."""
        ...

    def queue_message(self, message: Any, /) -> bool:
        """Take ``message`` for the run's next boundary; False if it takes no more. Never blocks."""
        ...

    def abort(self, reason: str | None = None) -> None:
        """Ask the run to end soon. Never blocks."""
        ...


@final
class Registered(enum.Enum):
    """The effect of `RunRegistry.register`."""

    STARTED = "started"
    """The session had no active run."""
    REPLACED = "replaced"
    """The session had another active run, which is no longer registered."""


@final
class SendRefused(enum.Enum):
    """The reason why a message was refused. The reasons are checked in this order."""

    NO_ACTIVE_RUN = "no_active_run"
    """The session has no active run."""
    NOT_STREAMING = "not_streaming"
    """The run takes no messages now."""
    COMPACTING = "compacting"
    """The run is rewriting its history."""
    STOPPED = "stopped"
    """The run refused the message, or raised."""
    NOT_ASKED = "not_asked"
    """The run asks for decisions, and not on one of these calls. Nothing was decided."""
    DECIDED = "decided"
    """Another decision stands: `SendResult.decided` has it."""


@final
@attrs.frozen
class SendResult:
    """The result of `RunRegistry.send`: true if the run accepted the message."""

    reason: SendRefused | None = None
    """The reason of the refusal; None if the message was accepted."""
    decided: Mapping[str, Any] = attrs.field(factory=dict)
    """What stands for the calls on which another decision came first, by their ids. The other
    decisions of the call count."""

    def __bool__(self) -> bool:
        return self.reason is None


_ACCEPTED: Final = SendResult()


@final
@attrs.define(eq=False)
class _Active:
    """A registration."""

    session: str  # as the caller spelled it
    run: Run
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)


class RunRegistry:
    """The active run of each session. A registry can be made anywhere, and needs no closing.

    A run registers itself with two lines:

    ::

        with registry.running(session, run):
            await work()
    """

    def __init__(self) -> None:
        self._active: Final[dict[str, _Active]] = {}  # {the name of the session lane: its run}

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.RunRegistry at {id(self):#x}, {len(self._active)} active>"

    @enable_ki_protection
    def register(self, session: str, run: Run) -> Registered:
        """Make ``run`` the active run of ``session``; it replaces any other. Not a checkpoint.

        Tasks that wait for the end of a replaced run are woken. If ``run`` is active there already,
        nothing changes, and the result is STARTED.
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
        """Remove ``run``, which has ended; False if it was not the active run. Not a checkpoint.

        Runs are compared by identity, so a run that ends late does not remove its successor.
        """
        lane = resolve_session_lane(session)
        active = self._active.get(lane)
        if active is None or active.run is not run:
            return False
        del self._active[lane]
        active.ended.set()
        return True

    def running(self, session: str, run: Run) -> AbstractContextManager[Registered]:
        """Register ``run`` for a ``with`` block, and clear it at the end of the block."""
        return _RunBlock(self, session, run)

    def get(self, session: str) -> Run | None:
        """Return the active run of ``session``, or None. Not a checkpoint."""
        active = self._active.get(resolve_session_lane(session))
        return None if active is None else active.run

    def active(self) -> dict[str, Run]:
        """Return all active runs, by session as spelled at `register`. Not a checkpoint."""
        return {active.session: active.run for active in self._active.values()}

    def send(self, session: str, message: Any) -> SendResult:
        """Offer ``message`` to the active run of ``session``. Not a checkpoint.

        This never blocks and never raises: an exception of the run is logged, and is a refusal.

        ::

            if not (sent := registry.send(session, text)):
                print("not now:", sent.reason)
        """
        active = self._active.get(resolve_session_lane(session))
        if active is None:
            return SendResult(SendRefused.NO_ACTIVE_RUN)
        run = active.run
        try:
            if (refusal := refusal_of(run)) is not None:
                return SendResult(refusal)
            if run.queue_message(message):
                return _ACCEPTED
        except Exception:
            _log.exception("session %r: %r raised when a message was sent to it", session, run)
        return SendResult(SendRefused.STOPPED)

    def abort(self, session: str, reason: str | None = None) -> bool:
        """Ask the active run of ``session`` to end; False if there is none. Not a checkpoint.

        The run stays registered until it has ended. An exception of its ``abort`` is raised.
        """
        run = self.get(session)
        if run is None:
            return False
        run.abort(reason)
        return True

    async def wait_ended(self, session: str, timeout: float = 15.0) -> bool:
        """Wait until the run that is active in ``session`` now has ended or was replaced.

        A checkpoint; cancelling it leaves nothing behind. A run that waits for its own end waits
        until the timeout.

        Args:
          timeout: the maximum number of seconds; a value below 0.1 counts as 0.1.

        Returns:
          False at the timeout; True if the run ended in time, or if there was none.
        """
        return await _wait(self._active.get(resolve_session_lane(session)), timeout)

    async def abort_and_wait(
        self, session: str, reason: str | None = None, timeout: float = 15.0
    ) -> bool:
        """`abort` the run that is active in ``session`` now, and wait for its end.

        A checkpoint; cancelling it does not undo the abort. ``timeout`` and the result are as for
        `wait_ended`.
        """
        active = self._active.get(resolve_session_lane(session))
        if active is not None:
            active.run.abort(reason)
        return await _wait(active, timeout)


def refusal_of(run: Run) -> SendRefused | None:
    """Return why ``run`` takes no messages now; None if it does."""
    if not run.is_streaming:
        return SendRefused.NOT_STREAMING
    return SendRefused.COMPACTING if run.is_compacting else None


async def _wait(active: _Active | None, timeout: float) -> bool:
    if active is None:
        await trio.lowlevel.checkpoint()
        return True
    with trio.move_on_after(max(SHORTEST_WAIT, timeout)):
        await active.ended.wait()
    return active.ended.is_set()


@final
class _RunBlock:
    """The block of `RunRegistry.running`.

    It is a class, not a generator, so that Ctrl-C cannot come between registering and entering.
    """

    def __init__(self, registry: RunRegistry, session: str, run: Run) -> None:
        self._registry: Final = registry
        self._session: Final = session
        self._run: Final = run

    @enable_ki_protection
    def __enter__(self) -> Registered:
        return self._registry.register(self._session, self._run)

    @enable_ki_protection
    def __exit__(self, *exc: object) -> None:
        self._registry.clear(self._session, self._run)
