"""Instruments: hooks that are told what lanes do.

A hook is called when the state change that it tells of is complete. It may submit, cancel or
pause; what that makes possible is started when the transition that called the hook is over. A
hook that raises is logged, and its instrument is removed, as in Trio.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ._config.check import optional_sync

if TYPE_CHECKING:
    from ._actors.job import AnyJob
    from ._views import Lane, SessionLane

logger: Final = logging.getLogger("trio_lanes")


class LaneInstrument(Protocol):
    """What an instrument may have. Every method is optional and synchronous.

    Inherit from this and override what you need. At run time nothing asks for that: whatever of
    these names an object has is called. A hook that nobody has, or that is only inherited from
    here, costs nothing. The key of a session is not fit for the label of a metric: `Lane.label`
    is, and so is ``job.lane`` where no lane comes from a template.
    """

    def job_submitted(self, job: AnyJob) -> None:
        """``job`` has been accepted and has its place in line."""
        return

    def job_forwarded(self, job: AnyJob) -> None:
        """``job`` may start as far as its session goes, and stands in line in its global lane."""
        return

    def job_started(self, job: AnyJob) -> None:
        """``job`` has its slots. Called in the job's own context, before its body."""
        return

    def job_finished(self, job: AnyJob) -> None:
        """``job`` has settled. Called in the job's own context."""
        return

    def job_waiting_long(self, job: AnyJob, waited: float) -> None:
        """``job`` has waited for longer than its ``warn_after``; ``waited`` is in seconds."""
        return

    def job_overdue(self, job: AnyJob, since: float) -> None:
        """The body of ``job`` still runs ``since`` seconds after it was cancelled."""
        return

    def lane_idle(self, lane: Lane | SessionLane) -> None:
        """Nothing waits in ``lane`` any more, and nothing runs."""
        return

    def lane_empty(self, lane: Lane | SessionLane) -> None:
        """Nothing waits in ``lane`` any more."""
        return

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """``lane`` starts nothing until it is resumed."""
        return

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        """``lane`` starts jobs again."""
        return

    def lane_cleared(self, lane: Lane | SessionLane, count: int, reason: str | None) -> None:
        """``count`` jobs of ``lane`` that had not started were cancelled by a clear."""
        return

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        """``lane`` was reset, and ``abandoned`` running jobs of it were given up."""
        return

    def lane_rate_limited(self, lane: Lane | SessionLane, until: float) -> None:
        """The head of ``lane`` waits for a rate limit, until ``until`` on Trio's clock."""
        return

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        """New work from outside is refused from now on."""
        return


HOOKS: Final = tuple(name for name in vars(LaneInstrument) if name.startswith(("job_", "lane")))

Hook = tuple[object, Callable[..., object]]  # an instrument and its bound method


@final
class Hooks:
    """The hooks of all instruments, by name.

    Each name is an attribute: a list that is empty when nobody listens, so that a caller asks
    ``if hooks.job_started:`` before it prepares anything.
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

    def __init__(self, instruments: Iterable[object]) -> None:
        instruments = tuple(instruments)
        for name in HOOKS:
            hooks: list[Hook] = []
            for instrument in instruments:
                method = getattr(instrument, name, None)
                if getattr(method, "__func__", None) is getattr(LaneInstrument, name):
                    continue
                optional_sync(f"an instrument's {name}", method)
                if method is not None:
                    hooks.append((instrument, method))
            setattr(self, name, hooks)

    def call(self, hooks: list[Hook], *args: Any) -> None:
        """Call each of ``hooks``, which is one of the attributes, with ``args``. Never raises."""
        for instrument, method in tuple(hooks):
            try:
                method(*args)
            except BaseException:
                self._remove(instrument)
                _say_that_it_raised(instrument, method)

    def call_in_context(self, hooks: list[Hook], job: AnyJob) -> None:
        """`call` them with ``job``, in its own context."""
        assert job._context is not None
        try:
            job._context.run(self.call, hooks, job)
        except RuntimeError:  # it is entered already; the hooks themselves never raise
            self.call(hooks, job)

    def _remove(self, instrument: object) -> None:
        for name in HOOKS:
            hooks: list[Hook] = getattr(self, name)
            hooks[:] = [hook for hook in hooks if hook[0] is not instrument]


def _say_that_it_raised(instrument: object, method: object) -> None:
    try:
        logger.exception("%r raised; the instrument %r is removed", method, instrument)
    except BaseException:  # a handler or filter of the application's, or a `repr`
        pass
