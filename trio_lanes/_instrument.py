"""The hooks that an instrument may have.

A hook is called between two acts of the lanes, when the state change that it reports is complete.
It may submit, cancel, clear, reset or configure; that is served next. A hook that raises is logged,
and its instrument is removed, as in Trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from ._actors.job import AnyJob
from ._config.errors import LaneDeadlockError
from ._views import Lane, SessionLane

if TYPE_CHECKING:
    from ._lanes import Lanes


class LaneInstrument(Protocol):
    """The hooks that an instrument may have. Every method is optional and synchronous.

    Inherit from this class and override the hooks that you need. Inheritance is not required: an
    object needs only methods of these names. A hook that no instrument has, or that is only
    inherited from here, costs nothing. A hook is called between two acts of the lanes, when the
    change that it reports is complete; it may submit, cancel, clear, reset or configure. Do not
    label a metric with the key of a session: use `Job.lane_label` or `Lane.label`.
    """

    def job_submitted(self, job: AnyJob) -> None:
        """``job`` has been accepted and has its place in its queue."""
        return

    def job_forwarded(self, job: AnyJob) -> None:
        """The session of ``job`` has forwarded it: it stands in the line of its global lane."""
        return

    def job_started(self, job: AnyJob) -> None:
        """``job`` has its slots. Called in the job's own context, before its body."""
        return

    def job_finished(self, job: AnyJob) -> None:
        """``job`` has settled. Called in the job's own context."""
        return

    def job_lent(self, job: AnyJob) -> None:
        """``job`` has lent its slot, by `Job.yield_slot`. `Job.blocked_by` says for what."""
        return

    def job_readmitted(self, job: AnyJob) -> None:
        """``job`` has given its slot back, by `Job.readmit`, and waits to be started again."""
        return

    def job_regained(self, job: AnyJob) -> None:
        """``job``, which had lent its slot or was readmitted, has a slot again."""
        return

    def job_cancel_called(self, job: AnyJob, reason: str | None) -> None:
        """``job``, which runs, was asked to stop: by `Job.cancel`, a reset, a drain or its caller.

        Called once for each job, and not for a deadline of its own. Its body may still run.
        """
        return

    def job_rejected(self, lane: Lane | SessionLane, reason: Literal["full", "closed"]) -> None:
        """A submission to ``lane`` was refused: it has no room, or the lanes are closed.

        ``lane`` is the lane that has no room, which may be that of the session.
        """
        return

    def job_waiting_long(self, job: AnyJob, waited: float) -> None:
        """``job`` has waited for longer than its ``warn_after``; ``waited`` is in seconds."""
        return

    def job_overdue(self, job: AnyJob, since: float) -> None:
        """The body of ``job`` still runs ``since`` seconds after it was cancelled."""
        return

    def lane_idle(self, lane: Lane | SessionLane) -> None:
        """No job waits or runs in ``lane`` any more."""
        return

    def lane_empty(self, lane: Lane | SessionLane) -> None:
        """No job waits in ``lane`` any more."""
        return

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """``lane`` was paused: it starts no job until it is resumed."""
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

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        """``lane`` is new in the configuration, or has another configuration than before."""
        return

    def lanes_opened(self, lanes: Lanes) -> None:
        """This instrument listens to ``lanes``: the first hook that it has, called once.

        They have just been opened, or it was added to them by `Lanes.add_instrument`.
        """
        return

    def deadlock_refused(self, error: LaneDeadlockError) -> None:
        """A wait inside a job ended in ``error``, whose message lists the jobs of the deadlock."""
        return

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        """New work from outside is refused from now on."""
        return
