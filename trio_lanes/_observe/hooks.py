"""The hooks of all instruments, by name, and how they are called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final, final

from .._actors.job import AnyJob
from .._config.check import optional_sync

logger: Final = logging.getLogger("trio_lanes")

Hook = tuple[object, Callable[..., object]]  # an instrument and its bound method

HOOKS: Final = (
    "job_submitted",
    "job_forwarded",
    "job_started",
    "job_finished",
    "job_waiting_long",
    "job_overdue",
    "lane_idle",
    "lane_empty",
    "lane_paused",
    "lane_resumed",
    "lane_cleared",
    "lane_reset",
    "lane_rate_limited",
    "lanes_closing",
)


ALIASES: Final = {"job_overdue": "cancel_overdue"}
"""{hook: another name that an instrument may have it by}"""


@final
class Hooks:
    """The hooks of all instruments, by name.

    Each name is an attribute: a list that is empty when no instrument listens, so that a caller
    asks ``if hooks.job_started:`` before it prepares anything.
    """

    __slots__ = HOOKS

    job_submitted: list[Hook]
    job_forwarded: list[Hook]
    job_started: list[Hook]
    job_finished: list[Hook]
    job_waiting_long: list[Hook]
    job_overdue: list[Hook]
    lane_idle: list[Hook]
    lane_empty: list[Hook]
    lane_paused: list[Hook]
    lane_resumed: list[Hook]
    lane_cleared: list[Hook]
    lane_reset: list[Hook]
    lane_rate_limited: list[Hook]
    lanes_closing: list[Hook]

    def __init__(self, instruments: Iterable[object], base: type) -> None:
        """Collect the hooks of ``instruments``; a method inherited from ``base`` is no hook."""
        instruments = tuple(instruments)
        for name in HOOKS:
            hooks: list[Hook] = []
            for instrument in instruments:
                for known_as in (name, ALIASES.get(name)):
                    method = None if known_as is None else getattr(instrument, known_as, None)
                    if getattr(method, "__func__", None) is getattr(base, known_as or name):
                        continue
                    optional_sync(f"an instrument's {known_as}", method)
                    if method is not None:
                        hooks.append((instrument, method))
                        break
            setattr(self, name, hooks)

    def call(self, hooks: list[Hook], *args: Any) -> None:
        """Call each of ``hooks``, which is one of the attributes, with ``args``. Never raises."""
        for instrument, method in tuple(hooks):
            try:
                method(*args)
            except BaseException:
                self._remove(instrument)
                _say_that_it_raised(instrument, method)

    def call_in_context(self, hooks: list[Hook], job: AnyJob, context: Context) -> None:
        """`call` them with ``job``, in its own context."""
        try:
            context.run(self.call, hooks, job)
        except RuntimeError:  # the context is entered already; `call` itself never raises
            self.call(hooks, job)

    def _remove(self, instrument: object) -> None:
        for name in HOOKS:
            hooks: list[Hook] = getattr(self, name)
            hooks[:] = [hook for hook in hooks if hook[0] is not instrument]


def _say_that_it_raised(instrument: object, method: object) -> None:
    try:
        logger.exception("%r raised; the instrument %r is removed", method, instrument)
    except BaseException:  # from a logging handler or filter of the application, or a `repr`
        pass
