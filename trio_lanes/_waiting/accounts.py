"""Where the waits of jobs went: each second has one cause, the first of `blocked_by`.

Time passes between batches only, so it is enough to look when a batch ends: at the jobs that came
to a place (``moved``), and at the actors whose reasons may be others now (``changed``). All but the
first job of an actor wait for the same, and read its account when they leave; the first has a
reason of its own, which may change with each act in its lane, or in the group of that. So an act
costs the same however many jobs wait, and nothing where none does.
"""

from __future__ import annotations

import math
from typing import Final, final

from .._actors.actor import Actor
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import WAITING
from .._actors.wait_log import Account, WaitLog

_NO_ACTOR: Final = Account(0.0)  # of jobs that are not due, or wait for room


@final
class Accounts:
    """The accounts of the actors in which jobs wait, if there are to be any."""

    def __init__(self) -> None:
        self.moved: Final[list[AnyJob]] = []
        """Jobs that have come to another place in this batch."""
        self.changed: Final[dict[Actor, None]] = {}
        """Actors that may hold their jobs for other causes since this batch."""
        self.by_actor: Final[dict[Actor, Account]] = {}

    def asked_for_room(self, job: AnyJob, now: float) -> None:
        """``job``, which is not submitted, waits for room."""
        job._keep_log(WaitLog()).hold(_NO_ACTOR, "room", now)

    def note_lane(self, lane: LaneActor) -> None:
        """``lane`` was served, and other lanes may share its limiter."""
        self.changed[lane] = None
        if lane.token_request is not None:
            sharing = (one for one in lane.lanes.values() if one.limiter is lane.limiter)
            self.changed.update(dict.fromkeys(sharing))

    def settle(self, now: float) -> None:
        """A batch ends: see to it that each job waits for what it waits for now."""
        changed, by_actor = self.changed, self.by_actor
        for job in self.moved:
            if job._state is WAITING:
                self._place(job, now)
        self.moved.clear()
        for actor in changed:
            account = by_actor.get(actor)
            if account is None:
                continue
            if not actor.waiting:
                del by_actor[actor]
            elif isinstance(actor, LaneActor):
                self._look_at_lane(actor, account, now)
            else:
                assert isinstance(actor, SessionActor)
                self._look_at_session(actor, account, now)
        changed.clear()

    def _place(self, job: AnyJob, now: float) -> None:
        lane, session = job._lane, job._session_lane
        log = job._log or job._keep_log(WaitLog())
        if lane.delayed and job.id in lane.delayed:
            log.hold(_NO_ACTOR, "delay", now)
            return
        in_lane = session is None or job._place in session.forwarded
        actor: Actor = lane if in_lane or session is None else session
        account = self.by_actor.get(actor)
        if account is None:
            account = self.by_actor[actor] = Account(now)
            self.changed[actor] = None
        elif in_lane:
            head = account.head
            if head is None or job._priority > head._priority or job._arrival < head._arrival:
                self.changed[actor] = None
        log.follow(account, now)

    def _look_at_lane(self, lane: LaneActor, account: Account, now: float) -> None:
        lane.step()
        head = lane.line.best() if lane.line.items else None
        if lane.paused is not (account.cause == "pause"):
            account.turn("pause" if lane.paused else "order", now)
        if head is not account.head:
            _follow_others(account, now)
            account.head = head
        if head is None or head._state is not WAITING:
            return  # a job that is readmitted has no log
        cause, until, group = "slots", math.inf, lane.group
        if lane.paused:
            cause = "pause"
        elif lane.limiter.available_tokens >= 1:
            if group is not None and not group.admits(lane.label):
                cause = "group"
            elif lane.rates.units and lane.rates.ready_at(head._costs, now) > now:
                cause = "rate"
            else:  # a head of another lane of the group is before it, now or later
                cause = "order"
                if group is not None and (when := group.rates.ready_at(head._costs, now)) > now:
                    cause, until = "rate", when
        assert head._log is not None
        head._log.hold(account, cause, now, until)

    def _look_at_session(self, session: SessionActor, account: Account, now: float) -> None:
        cause = "pause" if session.paused else "order"
        if cause == "order" and len(session.running) >= session.concurrency:
            cause = "session"
        if cause != account.cause:
            account.turn(cause, now)
        if account.head is not None:
            _follow_others(account, now)
        session.step()
        may_be_charged = session.rates.units and cause == "order" and not session.forwarded
        if may_be_charged and session.backlog.items:
            head = session.backlog.best()
            if not session.readmitted_before(head):
                account.head = head
                assert head._log is not None
                head._log.hold(account, "rate", now)


def _follow_others(account: Account, now: float) -> None:
    """Let the head of ``account``, if it waits there yet, wait as the others do."""
    head, account.head = account.head, None
    if head is not None and head._state is WAITING:
        log = head._log
        if log is not None and log.alone and log.account is account:
            log.follow(account, now)
