"""The registry of lanes, templates and groups, whether they are configured or come and go.

These are the words of a lane's life::

    word    what happens                                     where
    make    an actor, as the plan describes it; in no table  make_lane, session_lane
    revive  it stands in the table of those that are alive   revive_lane, revive_session
    retire  it waits, unused, until its rates have refilled  Scheduler._retire
    forget  it leaves the table; the actor of a session may  forget, forget_session
            be reused for the next that is revived

Configured lanes are revived when the lanes open, or are configured, and are forgotten when they are
removed. Others are revived by their first job, or by a request, and forgotten after their last.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final
from weakref import WeakValueDictionary

import trio

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import AskForTokens, LaneActor
from .._actors.options import LaneConfig
from .._actors.plan import Plan
from .._actors.session import SessionActor, mailbox_pool
from .._actors.template import Template

MAX_SPARES: Final = 250
"""How many actors of sessions that are gone are kept for new sessions: as many sessions as may end
before other tasks have their turn. They take 400 KB."""


@final
class Registry:
    """The lanes of one `open_lanes`."""

    def __init__(self, ask: AskForTokens, left_line: dict[AnyJob, None]) -> None:
        self._ask: Final = ask
        self._left_line: Final = left_line
        self.plan = Plan()
        self.lanes: Final[dict[str, LaneActor]] = {}  # {name: global lane that is alive}
        self.sessions: Final[dict[str, SessionActor]] = {}  # {key: actor that is alive}
        self.templates: Final[dict[str, Template]] = {}  # of global lanes, by name
        self.groups: Final[dict[str, Group]] = {}
        self.bounded_sessions = False  # whether any session has a bound
        # The actors that were touched, of each kind. Sessions are served first, since lanes start
        # the jobs that sessions forward; and lanes before the groups that choose among their heads.
        self.session_turns: Final[deque[SessionActor]] = deque()
        self.lane_turns: Final[deque[LaneActor]] = deque()
        self.group_turns: Final[deque[Group]] = deque()
        self._mailboxes: Final = mailbox_pool()
        self._spares: Final[deque[SessionActor]] = deque(maxlen=MAX_SPARES)
        # {key: the limiter of a session, while the application holds it}
        self._limiters: Final[WeakValueDictionary[str, trio.CapacityLimiter]] = (
            WeakValueDictionary()
        )
        self._had_limiters = False

    # ---- global lanes

    def find_or_make_lane(self, name: str) -> LaneActor | None:
        """Return the global lane of that name, made from its template if need be; or None."""
        lane = self.lanes.get(name)
        if lane is None:
            label = self.plan.label_of(name)
            if label is not None:
                lane = self.make_lane(name, label)  # its first job revives it, or none
                self.join_group(lane)
        return lane

    def make_lane(self, name: str, label: str) -> LaneActor:
        """Make a lane as the plan describes the lanes of ``label``; it is not alive yet."""
        config = self.plan.lanes[label]
        lane = LaneActor(
            name, label, config, self.lane_turns, self.lanes, self._ask, self._left_line
        )
        template = self.templates.get(label)
        if template is not None:
            lane.set_template(template)
            lane.inherit_pause(template)
        return lane

    def revive_lane(self, lane: LaneActor) -> None:
        """Have ``lane`` be alive from now on."""
        self.lanes[lane.name] = lane

    def make_template(self, name: str) -> Template:
        """Make a template as the plan describes it."""
        return Template(name, self.plan.lanes[name], self.lanes)

    def join_group(self, lane: LaneActor) -> None:
        """Put ``lane`` into its group by the plan, if any."""
        group = self.plan.group_of(lane.label)
        lane.join(None if group is None else self.groups[group])

    def make_group(self, name: str) -> Group:
        """Make a group as the plan describes it."""
        return Group(name, self.plan.groups[name], self.group_turns, self.lanes)

    # ---- sessions

    def session_lane(self, key: str) -> SessionActor:
        """Return the lane of the session ``key``; it need not be alive."""
        return self.sessions.get(key) or self._make_session(key, self.plan.of_session(key))

    def _make_session(self, key: str, config: LaneConfig) -> SessionActor:
        return SessionActor(key, config, self.session_turns, self._mailboxes)

    def revive_session(self, key: str) -> SessionActor:
        """Return the lane of the session ``key``, which was not alive and is from now on."""
        config = self.plan.of_session(key) if self.plan.sessions else self.plan.others
        if self._spares and self._spares[-1].config is config:
            session = self._spares.pop()
            session.reuse_for(key)
        else:
            session = self._make_session(key, config)
        self.sessions[key] = session
        if self._had_limiters:
            limiter = self._limiters.get(key)
            if limiter is not None:
                session.watch_limiter(limiter)
        return session

    def session_limiter(self, key: str) -> trio.CapacityLimiter:
        """Return the limiter of the session ``key``: true from now on, while it is referenced."""
        limiter = self._limiters.get(key)
        if limiter is None:
            concurrency = self.plan.of_session(key).first_concurrency
            limiter = self._limiters[key] = trio.CapacityLimiter(concurrency)
            self._had_limiters = True
            session = self.sessions.get(key)
            if session is not None:
                session.watch_limiter(limiter)
        return limiter

    def resize_session_limiters(self) -> None:
        """Set the totals of the sessions' limiters as the plan says."""
        for key, limiter in self._limiters.items():
            limiter.total_tokens = self.plan.of_session(key).first_concurrency

    # ---- all

    @property
    def actors(self) -> list[Actor]:
        """Every lane that is alive, of both layers."""
        return [*self.lanes.values(), *self.sessions.values()]

    def forget_session(self, session: SessionActor) -> None:
        """Forget ``session``, which has no job, no rates and no pause; it may become another."""
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]
            used = session.generation or session.limiter is not None or session.timer is not None
            # Hooks are to hear that it is idle. Of sessions that begin paused, one was resumed.
            if not (used or session.announced.unended or session.touched or session.config.paused):
                self._spares.append(session)

    def forget(self, actor: Actor) -> None:
        """Forget a session's or a template's lane in which no job waits or runs."""
        if isinstance(actor, SessionActor):
            if self.sessions.get(actor.key) is actor:
                del self.sessions[actor.key]
        elif self.lanes.get(actor.name) is actor:
            del self.lanes[actor.name]

    def lanes_of(self, job: AnyJob) -> tuple[LaneActor, SessionActor | None]:
        """Return the lanes of ``job``, which may have ended: its lanes may have been replaced."""
        session = None if job.session is None else self.session_lane(job.session)
        return self.find_or_make_lane(job.lane) or job._lane, session
