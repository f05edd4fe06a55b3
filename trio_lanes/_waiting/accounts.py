"""Where the waits of jobs went: each second has one cause, the first of `blocked_by`.

Time passes between batches only, so what counts is how things stand when a batch ends. So in a
batch the joints only collect: the jobs that came to another place or wait no more (``left_line``),
and the actors and groups that were served. All but the first job of an actor, its *head*, wait for
the same, and note how the account of the actor stands when they come and go; the head has a cause
of its own. These causes change only with what the loop does in that actor; but in a lane that
shares a limiter, or is in a group, also with what it does in others (``_changed``).

With each act in a group the causes of the heads of all its lanes may change. But it holds the heads
of one label and the same costs for the same, so these share an account of the group (`_shared`).
So do the heads of one label that the rates of their own lanes hold, whatever their costs: they wait
for a token of the group if it has none, and for a rate else. These accounts are looked at after
each batch with an act in the group; only its lanes that share their limiters are looked at one by
one (`_apart`). So an act in a group costs the same however many jobs and lanes wait, unless the
costs of all heads differ.
"""

from __future__ import annotations

import math
from typing import Final, final

from .._actors.actor import Served
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import WAITING
from .._actors.wait_log import (
    ACCOUNT,
    OWN,
    SHARED,
    Account,
    GroupAccount,
    HeadKey,
    HoldsHeads,
    Log,
    Own,
    added_up,
)

_PAUSE, _SLOTS, _GROUP, _RATE, _ORDER, _DELAY, _ROOM = (
    (cause, math.inf) for cause in ("pause", "slots", "group", "rate", "order", "delay", "room")
)
_NO_ACTOR: Final = Account(0.0)  # of jobs that are not due, or wait for room


@final
class Accounts:
    """The accounts of the actors in which jobs wait, if there are to be any."""

    def __init__(self) -> None:
        self.left_line: Final[dict[AnyJob, None]] = {}
        """Jobs that have come to another place in this batch, or wait no more."""
        self._served: Final[dict[Served, None]] = {}  # in this batch
        # Lanes that may hold their jobs for other causes since this batch
        self._changed: Final[dict[LaneActor, None]] = {}
        # {group: {(label, costs of the heads): the account that they share}}
        self._shared: Final[dict[HoldsHeads, dict[HeadKey, GroupAccount]]] = {}
        # {group: its lanes in which jobs wait, and that share their limiters}
        self._apart: Final[dict[Group, dict[LaneActor, None]]] = {}

        # Methods of dicts, which cost less than a function each
        self.on_asked: Final = self.left_line.setdefault
        self.on_placed = self.on_started = self.on_settled = self.on_asked
        self.on_served: Final = self._served.setdefault

    def on_batch_end(self, now: float) -> None:
        """Note for what each job waits from ``now`` on."""
        waiting: list[AnyJob] = []
        for job in self.left_line:  # first the waits that are over, before the accounts change
            if job._state is WAITING:
                waiting.append(job)
                continue
            if job._log is not None:
                _close(job, job._log)
            if job._session_lane is not None:  # which may be full by now
                self._served[job._session_lane] = None
        self.left_line.clear()
        for job in waiting:
            self._place(job, now)
        for served in self._served:  # and lanes last, to which groups and other lanes add
            if isinstance(served, Group):
                for shared in self._shared.get(served, {}).values():
                    _hold_heads(shared, now)
                self._changed.update(self._apart.pop(served, {}))
            elif isinstance(served, LaneActor):
                self._changed[served] = None
                if served.token_request is not None:  # and those that share its limiter
                    for lane in served.lanes.values():
                        if lane.limiter is served.limiter:
                            self._changed[lane] = None
            elif isinstance(served, SessionActor) and served.account is not None:
                self._look_at_session(served, served.account, now)
        self._served.clear()
        for lane in self._changed:
            if lane.account is not None:
                self._look_at_lane(lane, lane.account, now)
        self._changed.clear()

    def _place(self, job: AnyJob, now: float) -> None:
        """Note that ``job`` waits from now on where it stands."""
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        if not job.id:
            _wait_alone(job, _NO_ACTOR, _ROOM, now)
            return
        if lane.delayed and job.id in lane.delayed:
            _wait_alone(job, _NO_ACTOR, _DELAY, now)
            return
        if session is not None and job._place not in session.forwarded:
            account = session.account
            if account is None:
                account = session.account_from(now)
                self._look_at_session(session, account, now)
            log, in_lane = job._log, False
        else:
            account = lane.account or lane.account_from(now)
            log, in_lane, head = job._log, True, account.head
            if head is None or job._priority > head._priority or job._arrival < head._arrival:
                self._changed[lane] = None  # the job may be the head now
        if log is None:
            job._log = (None, None, account, account.mark, SHARED, now)
        # A head that moved and is the head still goes on with the cause that it has.
        elif account.head is not job or log[ACCOUNT] not in (account, account.follows):
            if in_lane:
                job._log = (log, log[ACCOUNT].mark, account, account.mark, SHARED, now)
            else:  # it may come back here again and again, and its log would grow
                job._log = (added_up(log, now), None, account, account.mark, SHARED, now)

    def _look_at_lane(self, lane: LaneActor, account: Account, now: float) -> None:
        """Note who is the head of ``lane`` now, and for what it waits."""
        if not lane.waiting:
            self._follow(account, None)
            lane.drop_account()
            return
        if lane.mailbox.count:
            lane.step()
        head = lane.line.best() if lane.line.items else None
        if lane.paused is not (account.mark[0] == "pause"):
            account.change_cause("pause" if lane.paused else "order", now)
        if head is not account.head:
            _share_cause(account, now)
            account.head = head
        if head is None or head._state is not WAITING:  # it is readmitted: its wait is over
            self._follow(account, None)
            return
        # A head that may lack a token of a shared limiter is looked at by itself; that of a full
        # lane waits for a slot of its lane, whatever the group has.
        if lane.group is not None and not lane.paused:
            if lane.token_request is not None:
                self._apart.setdefault(lane.group, {})[lane] = None
            elif lane.slots < lane.concurrency:
                self._share(lane, lane.group, head, account, now)
                return
        own = _PAUSE if lane.paused else _SLOTS  # nothing else stops the head of a plain lane
        if not (lane.plain or lane.paused):
            own = _cause_of_head(lane, head, now)
        _wait_alone(head, account, own, now)
        self._follow(account, None)

    def _share(
        self, lane: LaneActor, group: Group, head: AnyJob, account: Account, now: float
    ) -> None:
        """Let ``head`` wait as the heads of other lanes of the group do."""
        by_own_rate = lane.rates.units and lane.rates.ready_at(head._costs, now) > now
        key = lane.label, None if by_own_rate else frozenset(head._costs.items())
        shared = self._shared.setdefault(group, {}).get(key)
        if shared is None:
            shared = self._shared[group][key] = GroupAccount(now, group, key)
            _hold_heads(shared, now)
        log = head._log
        if log is None or log[ACCOUNT] is not shared:
            before = None if log is None else added_up(log, now)
            head._log = (before, None, shared, shared.mark, SHARED, now)
        self._follow(account, shared)

    def _follow(self, account: Account, shared: GroupAccount | None) -> None:
        """Note what the head of ``account`` shares, if anything; forget what no head shares."""
        former, account.follows = account.follows, shared
        if shared is not None:
            shared.followers += 1
        if former is not None:
            former.followers -= 1
            if not former.followers:
                accounts = self._shared[former.group]
                del accounts[former.key]
                if not accounts:
                    del self._shared[former.group]

    def _look_at_session(self, session: SessionActor, account: Account, now: float) -> None:
        """``session`` may hold its jobs for another cause from now on."""
        if not session.waiting:
            session.drop_account()
            return
        cause = "pause" if session.paused else "order"
        if cause == "order" and len(session.running) >= session.concurrency:
            cause = "session"
        if cause != account.mark[0]:
            account.change_cause(cause, now)
        if account.head is not None:
            _share_cause(account, now)
        if cause == "order" and session.rates.units and not session.forwarded:
            session.step()
            head = session.backlog.best() if session.backlog.items else None
            # Only the rate stops it, unless a readmitted job is charged before it.
            if head is not None and not session.readmitted_before(head):
                account.head = head
                _wait_alone(head, account, _RATE, now)


def _close(job: AnyJob, log: Log) -> None:
    """The wait of ``job`` is over."""
    if log[ACCOUNT] is not None and log[OWN] is SHARED:  # else nothing is to be noted
        end = job.finished_at if job.started_at is None else job.started_at
        assert end is not None
        job._log = (log, log[ACCOUNT].mark, None, None, SHARED, end)


def _cause_of_head(lane: LaneActor, head: AnyJob, now: float) -> Own:
    """Return for what ``head`` waits, in a lane that is not plain, nor paused."""
    group = lane.group
    if lane.limiter.available_tokens < 1:
        return _SLOTS
    if group is not None and not group.admits(lane.label):
        return _GROUP
    if lane.rates.units and lane.rates.ready_at(head._costs, now) > now:
        return _RATE
    # Else a head of another lane of the group is before it: now, or from ``when`` on.
    if group is not None and (when := group.rates.ready_at(head._costs, now)) > now:
        return "rate", when
    return _ORDER


def _hold_heads(shared: GroupAccount, now: float) -> None:
    """Let the heads of ``shared`` wait from now on for what their group holds them for."""
    group, (label, costs) = shared.group, shared.key
    if not group.admits(label):
        shared.hold("group", now)
    elif costs is None:
        shared.hold("rate", now)
    # Else a head of another lane of the group is before them: now, or from ``when`` on.
    elif (when := group.rates.ready_at(dict(costs), now)) > now:
        shared.hold("rate", now, when)
    else:
        shared.hold("order", now)


def _wait_alone(job: AnyJob, account: Account, own: Own, now: float) -> None:
    """Let ``job`` wait from now on for a cause of its own."""
    log = job._log
    if log is None:
        job._log = (None, None, account, None, own, now)
    elif log[OWN] is SHARED:
        job._log = (log, log[ACCOUNT].mark, account, None, own, now)
    # Added up, as a head may change its cause again and again, and its log would grow.
    elif log[OWN] != own or log[ACCOUNT] is not account:
        job._log = (added_up(log, now), None, account, None, own, now)


def _share_cause(account: Account, now: float) -> None:
    """Let the head of ``account``, if it still waits there, wait as the others do."""
    head, account.head = account.head, None
    log = None if head is None or head._state is not WAITING else head._log
    if head is None or log is None:
        return
    # Its log has this account if it has a cause of its own, that of the group if it shares that.
    # With any other account it waits as the others do already, or elsewhere.
    if log[ACCOUNT] is (account if log[OWN] is not SHARED else account.follows):
        head._log = (added_up(log, now), None, account, account.mark, SHARED, now)
