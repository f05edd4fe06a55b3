"""The hooks of all instruments, by name, and how they are called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final, TypeVar, final

from .._actors.job import AnyJob
from .._config.check import optional_sync

logger: Final = logging.getLogger("trio_lanes")

F = TypeVar("F", bound=Callable[..., object])

# An instrument, its bound method, and whether that needs the context of its job
Hook = tuple[object, Callable[..., object], bool]

HOOKS: Final = (
    "job_submitted",
    "job_forwarded",
    "job_started",
    "job_finished",
    "job_lent",
    "job_readmitted",
    "job_regained",
    "job_cancel_called",
    "job_rejected",
    "job_waiting_long",
    "job_overdue",
    "lane_idle",
    "lane_empty",
    "lane_paused",
    "lane_resumed",
    "lane_cleared",
    "lane_reset",
    "lane_rate_limited",
    "lane_configured",
    "lanes_opened",
    "lanes_closing",
    "deadlock_refused",
)


@final
class Hooks:
    """The hooks of all instruments, by name.

    Each name is an attribute: a list that is empty when no instrument listens, so that a caller
    asks ``if hooks.job_started:`` before it prepares anything.
    """

    __slots__ = ("_base", "instruments", *HOOKS)

    job_submitted: list[Hook]
    job_forwarded: list[Hook]
    job_started: list[Hook]
    job_finished: list[Hook]
    job_lent: list[Hook]
    job_readmitted: list[Hook]
    job_regained: list[Hook]
    job_cancel_called: list[Hook]
    job_rejected: list[Hook]
    job_waiting_long: list[Hook]
    job_overdue: list[Hook]
    lane_idle: list[Hook]
    lane_empty: list[Hook]
    lane_paused: list[Hook]
    lane_resumed: list[Hook]
    lane_cleared: list[Hook]
    lane_reset: list[Hook]
    lane_rate_limited: list[Hook]
    lane_configured: list[Hook]
    lanes_opened: list[Hook]
    lanes_closing: list[Hook]
    deadlock_refused: list[Hook]

    def __init__(self, instruments: Iterable[object], base: type) -> None:
        """Collect the hooks of ``instruments``; a method inherited from ``base`` is no hook."""
        self._base: Final = base
        self.instruments: Final[list[object]] = []
        for name in HOOKS:
            setattr(self, name, [])
        for instrument in instruments:
            self.add(instrument)

    def add(self, instrument: object) -> bool:
        """Add the hooks of ``instrument``; False if they are there already.

        Raises:
          TypeError: if a hook is no synchronous function; then nothing has changed.
        """
        if any(known is instrument for known in self.instruments):
            return False
        found = {name: self._find(instrument, name) for name in HOOKS}
        self.instruments.append(instrument)
        for name, method in found.items():
            if method is not None:
                needs_context = getattr(method, "_needs_context", True)
                getattr(self, name).append((instrument, method, needs_context))
        return True

    def _find(self, instrument: object, name: str) -> Callable[..., object] | None:
        method = getattr(instrument, name, None)
        if getattr(method, "__func__", None) is getattr(self._base, name):
            return None
        optional_sync(f"an instrument's {name}", method)
        return method

    def remove(self, instrument: object) -> bool:
        """Remove ``instrument`` and its hooks; False if it is not there."""
        known = [other for other in self.instruments if other is not instrument]
        if len(known) == len(self.instruments):
            return False
        self.instruments[:] = known
        for name in HOOKS:
            hooks: list[Hook] = getattr(self, name)
            hooks[:] = [hook for hook in hooks if hook[0] is not instrument]
        return True

    def tell_opened(self, instrument: object, lanes: object) -> None:
        """Call the hook ``lanes_opened`` of ``instrument``, if it has one, with ``lanes``."""
        self.call([hook for hook in self.lanes_opened if hook[0] is instrument], lanes)

    def call(self, hooks: list[Hook], *args: Any) -> None:
        """Call each of ``hooks``, which is one of the attributes, with ``args``. Never raises."""
        for instrument, method, _ in tuple(hooks):
            try:
                method(*args)
            except BaseException:
                self.remove(instrument)
                _say_that_it_raised(instrument, method)

    def call_in_context(self, hooks: list[Hook], job: AnyJob, context: Context) -> None:
        """`call` them with ``job``: in its own context, but for those that need no context."""
        for instrument, method, needs_context in tuple(hooks):
            if needs_context:
                hook = [(instrument, method, True)]
                try:
                    context.run(self.call, hook, job)
                except RuntimeError:  # the context is entered already; `call` itself never raises
                    self.call(hook, job)
            else:  # as in `call`, which is dear for a hook of every job
                try:
                    method(job)
                except BaseException:
                    self.remove(instrument)
                    _say_that_it_raised(instrument, method)


def context_free(hook: F) -> F:
    """Mark a hook of an instrument as one that needs no context: it costs less to call.

    ::

        class Starts(LaneInstrument):
            @context_free
            def job_started(self, job): ...

    `LaneInstrument.job_started` and `LaneInstrument.job_finished` are otherwise called in the
    context of the job, where they can set variables that its body sees.
    """
    hook._needs_context = False  # type: ignore[attr-defined]
    return hook


def _say_that_it_raised(instrument: object, method: object) -> None:
    try:
        logger.exception("%r raised; the instrument %r is removed", method, instrument)
    except BaseException:  # from a logging handler or filter of the application, or a `repr`
        pass
