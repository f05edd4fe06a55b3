"""The way of a job through its lanes: accepted, forwarded, started, ended.

Every transition changes what it must, touches the actors that may act now, and serves: each
touched actor takes its step, which may touch others, until none is left. Serving is a loop, so
a million jobs that start each other are no recursion; and what a hook does inside a transition
only touches, and is served when that transition is over.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, Final, final
from weakref import WeakSet

import outcome
import trio

from ._actor import Actor
from ._backlog import rank
from ._config import NO_OPTIONS, LaneConfig
from ._crew import Crew
from ._current import job_here, jobs_by_task
from ._errors import JobCancelledError, LanesClosedError, QueueTimeoutError
from ._instrument import Hook, Hooks
from ._job import AnyJob
from ._lane import LaneActor
from ._mailbox import Mailbox
from ._room import Entrant, Lines, in_the_way
from ._session import SessionActor
from ._settle import Unseen, Verdict, interrupted, raised, settle, watch_failure
from ._state import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING, JobState, advance
from ._timers import Timers
from ._wait_warnings import WaitWarnings
from ._watch import Watches

logger: Final = logging.getLogger("trio_lanes")


@final
class Scheduler:
    """All lanes of one `open_lanes`, and the jobs in them."""

    def __init__(
        self,
        nursery: trio.Nursery,
        lanes: dict[str, LaneConfig],
        sessions: LaneConfig,
        hooks: Hooks,
    ) -> None:
        self._nursery: Final = nursery
        self._context: Final = copy_context()  # that of the lanes' own tasks
        self.hooks: Final = hooks
        self.view: Callable[[Actor], object] = lambda actor: actor  # what hooks are given
        self.running: Final = jobs_by_task()
        self.timers: Final = Timers(self._spawn)
        self._crew: Final = Crew(self, self.running, self._spawn)
        self._wait_warnings: Final = WaitWarnings(self.timers, hooks)
        self.watches: Final = Watches()
        self.session_config: Final = sessions
        self.bounded_sessions: Final = sessions.max_waiting != math.inf
        self.lanes: Final = {name: LaneActor(self, name, lanes[name]) for name in lanes}
        self.sessions: Final[dict[str, SessionActor]] = {}  # {key: actor}
        self.spare_limiters: Final[list[trio.CapacityLimiter]] = []
        self.spare_mailboxes: Final[list[Mailbox]] = []
        self.lines: Final = Lines()
        self.unseen: Final[WeakSet[Unseen]] = WeakSet()
        self.closing: LanesClosedError | None = None  # what new work from outside is told
        self.refused = 0  # submissions, since closing
        self.shut = False  # whether nothing at all starts any more
        self.abandoned = 0  # bodies that were given up by a reset, and have not ended
        self.finished = 0  # jobs that have settled, ever
        self._ids: Final = count(1)
        self._order: Final = count(1)  # places in sessions, arrivals in global lanes
        self._touched: Final[deque[Actor]] = deque()
        self._now = 0.0  # when the present transition began
        self._serving = False  # whether there is one

    def _spawn(self, fn: Callable[..., Coroutine[Any, Any, None]]) -> None:
        # A copy, since this may be called while the context itself is entered: by a hook of
        # Trio's that is told of a task which is being spawned here.
        self._context.copy().run(self._nursery.start_soon, fn)

    # ---- transitions

    def begin(self) -> bool:
        """Begin a transition; whether it is the outermost, which must `serve` at its end."""
        if self._serving:
            return False
        self._serving = True
        self._now = trio.current_time()
        return True

    def touch(self, actor: Actor) -> None:
        """Have ``actor`` take its step before the present transition is over."""
        if not actor.touched:
            actor.touched = True
            self._touched.append(actor)

    def serve(self) -> None:
        """End the outermost transition: whatever can act now acts."""
        touched, lines = self._touched, self.lines
        listeners = self.hooks.lane_empty or self.hooks.lane_idle
        while touched or (lines.length and self._let_in()):
            actor = touched.popleft()
            actor.touched = False
            actor.step()
            if lines.length:
                lines.look_at(actor, self.lanes.values())
            if listeners:
                self._tell_of(actor)
        self._serving = False
        if self.watches:
            self.watches.check()

    def _tell_of(self, actor: Actor) -> None:
        """Tell instruments if nothing waits in ``actor`` any more, or nothing runs either."""
        had_waiting, was_busy = actor.told
        waiting, busy = bool(actor.waiting), bool(actor.waiting or actor.active)
        actor.told = waiting, busy
        if had_waiting and not waiting:
            self.hooks.call(self.hooks.lane_empty, self.view(actor))
        if was_busy and not busy:
            self.hooks.call(self.hooks.lane_idle, self.view(actor))

    # ---- a job is accepted

    def accept(self, job: AnyJob) -> None:
        """Give ``job`` its place in line, and start whatever can start."""
        outermost = self.begin()
        lane = job._lane
        job.id = next(self._ids)
        job.submitted_at = self._now
        lane.bound[job.id] = job
        lane.waiting += 1
        order = next(self._order)
        if job.session is None:
            job._arrival = order
            lane.send(job)
            self.touch(lane)
        else:
            session = self.sessions.get(job.session)
            if session is None:
                session = self.awake(job.session)
            job._session_lane = session
            job._place = rank(job._priority, order)
            session.waiting += 1
            session.send(job)
            self.touch(session)
        hooks = self.hooks
        if job._options is not NO_OPTIONS or hooks.job_waiting_long:
            self._set_timers(job)
        if hooks.job_submitted:
            hooks.call(hooks.job_submitted, job)
        if outermost:
            self.serve()
        if job._state is WAITING and not job._options.queue_timeout:
            self._out_of_time(job)

    def awake(self, key: str) -> SessionActor:
        """A lane for the session ``key``, which has none."""
        session = self.sessions[key] = SessionActor(self, self, key, self.session_config)
        return session

    def retire(self, actor: Actor) -> None:
        """Forget the lane of a session in which nothing waits or runs."""
        assert isinstance(actor, SessionActor)
        if self.sessions.get(actor.key) is actor:
            del self.sessions[actor.key]

    def _set_timers(self, job: AnyJob) -> None:
        self._wait_warnings.watch(job)
        limit = job._options.queue_timeout
        if 0 < limit < float("inf"):
            timer = self.timers.call_at(job.submitted_at + limit, partial(self._out_of_time, job))
            job._timers = [*(job._timers or ()), timer]

    def _out_of_time(self, job: AnyJob) -> None:
        self.withdraw(job, QueueTimeoutError(job._options.queue_timeout))

    def warn_later(self, lane: LaneActor) -> None:
        """Have long waits in ``lane`` warned about."""
        self._wait_warnings.watch_lane(lane)

    # ---- a job waits for room

    def no_room_for(self, job: AnyJob) -> Actor | None:
        """The lane without room for ``job``, or where others wait for room before it."""
        lane = job._lane
        # What cannot wait needs no room for that.
        if not (lane.bounded or self.bounded_sessions) or not job._options.queue_timeout:
            return None
        session = None
        if job.session is not None:
            session = self.sessions.get(job.session)
            if session is None:  # its bound counts, though it is not alive
                session = SessionActor(self, self, job.session, self.session_config)
        return in_the_way(lane, session, settled=not self._serving)

    async def wait_for_room(self, job: AnyJob, *, by_job: bool) -> None:
        """Accept ``job`` when it is its turn; if this is cancelled, it has not been accepted."""
        session = None
        if job.session is not None:
            session = self.sessions.get(job.session) or self.awake(job.session)
        entrant = Entrant(job, by_job, session)
        self.lines.join(entrant)
        await entrant.wait(self._give_up)

    def _give_up(self, entrant: Entrant) -> None:
        outermost = self.begin()
        self._turn_away(entrant)
        if outermost:
            self.serve()

    def _turn_away(self, entrant: Entrant) -> None:
        self.lines.leave(entrant)
        self.touch(entrant.actor)
        if entrant.session is not None:
            self.touch(entrant.session)  # it may have been alive only for this

    def _let_in(self) -> bool:
        """Accept one who has waited for room; whether there was one."""
        while self.lines:
            entrant = self.lines.next()
            if entrant is not None:
                self.accept(entrant.job)
                trio.lowlevel.reschedule(entrant.task)
                return True
        return False

    # ---- forwarded, started

    def next_arrival(self) -> int:
        """The end of every line."""
        return next(self._order)

    def forward(self, job: AnyJob, arrival: int) -> None:
        """Put ``job`` in the line of its global lane, as one that came at ``arrival``."""
        job._arrival = arrival
        job._lane.send(job)
        self.touch(job._lane)
        if self.hooks.job_forwarded:
            self.hooks.call(self.hooks.job_forwarded, job)

    def start(self, job: AnyJob) -> None:
        """Give ``job``, which its lane has taken out of line, its slots, and have it run."""
        lane = job._lane
        advance(job, RUNNING)
        job.started_at = self._now
        lane.limiter.acquire_on_behalf_of_nowait(job)
        lane.active += 1
        lane.started += 1
        if job._session_lane is not None:
            job._session_lane.started(job)
        self._leave_line(job)
        if job._waiters:
            job._wake(started=True)
        if self.hooks.job_started:
            self._call_in_context(job, self.hooks.job_started)
        self._crew.grant(job)

    def _leave_line(self, job: AnyJob) -> None:
        lane, session = job._lane, job._session_lane
        del lane.bound[job.id]
        lane.waiting -= 1
        if lane.room_line:
            self.touch(lane)
        if session is not None:
            session.waiting -= 1
            if session.room_line or session.entering:
                self.touch(session)
        if job._timers:
            for timer in job._timers:
                timer.cancel()
            job._timers = None

    # ---- ended

    def returned(self, job: AnyJob, value: Any) -> None:
        """The body of ``job`` returned ``value``."""
        if job._state is RUNNING:
            self._end(job, SUCCEEDED, value, None)
        else:
            self.abandoned -= 1

    def raised(self, job: AnyJob, error: BaseException) -> BaseException | None:
        """``error`` left the body of ``job`` and its scope; what is to leave its task, too."""
        return self._judge(job, raised(error), error)

    def interrupted(self, job: AnyJob) -> BaseException | None:
        """The scope of ``job`` ended its body; what is to leave its task."""
        verdict = interrupted(job)
        return self._judge(job, verdict, verdict.error)

    def _judge(self, job: AnyJob, verdict: Verdict, error: BaseException) -> BaseException | None:
        leaves = verdict.leaves
        if job._state is not RUNNING:
            self.abandoned -= 1
            return leaves
        if verdict.state is FAILED and (job._unhandled or leaves is error):
            leaves = error
            job._unhandled = True  # whoever gets it from the lanes has seen it
        if isinstance(leaves, trio.Cancelled):
            self.shut_down("the lanes were cancelled")
        elif leaves is not None:
            self.shut_down(f"a job raised {type(leaves).__name__}")
        self._end(job, verdict.state, None, verdict.error)
        return leaves

    def _end(self, job: AnyJob, state: JobState, value: Any, error: BaseException | None) -> None:
        outermost = self.begin()
        self._release(job)
        self._settle(job, state, value, error)
        if outermost:
            self.serve()

    def _release(self, job: AnyJob) -> None:
        lane, session = job._lane, job._session_lane
        if session is not None:  # first: its next job competes for the slot in the lane
            session.ended(job)
            self.touch(session)
        lane.limiter.release_on_behalf_of(job)
        lane.active -= 1
        lane.finished += 1
        self.touch(lane)

    def _settle(
        self, job: AnyJob, state: JobState, value: Any, error: BaseException | None
    ) -> None:
        settle(job, self._now, state, value, error)
        self.finished += 1
        if error is not None and state is FAILED and not job._unhandled:
            unseen = watch_failure(job)
            if unseen is not None:
                self.unseen.add(unseen)
        if self.hooks.job_finished:
            self._call_in_context(job, self.hooks.job_finished)
        job._context = None
        job._session_lane = None
        if job._waiters:
            job._wake()

    def _call_in_context(self, job: AnyJob, hooks: list[Hook]) -> None:
        assert job._context is not None
        try:
            job._context.run(self.hooks.call, hooks, job)
        except RuntimeError:  # it is entered already; the hooks themselves never raise
            self.hooks.call(hooks, job)

    # ---- taken out before it started, or stopped

    def withdraw(self, job: AnyJob, error: Exception) -> None:
        """Settle ``job``, which waits, with ``error``: it will never be called."""
        outermost = self.begin()
        lane, session = job._lane, job._session_lane
        if session is not None:
            session.remove(job)
            self.touch(session)
        else:
            lane.remove(job)
        self._leave_line(job)
        self.touch(lane)
        self._settle(job, CANCELLED, None, error)
        if outermost:
            self.serve()

    def interrupt(self, job: AnyJob, error: JobCancelledError) -> None:
        """Cancel the body of ``job``; if that ends it, it settles with ``error``."""
        scope = job._scope
        if job._interruption is None and (scope is None or not scope.cancel_called):
            job._interruption = error
        if scope is not None:
            scope.cancel(error.reason)

    def abandon(self, job: AnyJob, error: JobCancelledError) -> None:
        """Cancel ``job``, which runs, and settle it now: what its body still does is its own."""
        begun = job._task is not None
        job._interruption = None
        self.interrupt(job, error)
        self.abandoned += begun
        self._end(job, CANCELLED, None, error)

    def cancel(self, job: AnyJob, reason: str | None) -> bool:
        """`Job.cancel`."""
        error = JobCancelledError(reason)
        if job._state is WAITING:
            self.withdraw(job, error)
        elif job._state is RUNNING:
            self.interrupt(job, error)
        else:
            return False
        return True

    def waiting_job(self) -> AnyJob | None:
        """The job on whose behalf the current task is about to wait."""
        return job_here(self.running)

    def awaited(self) -> None:
        """A job has begun to wait for another: who waits for lanes in that one leaves it out."""
        if self.watches:
            self.watches.check()

    def set_priority(self, job: AnyJob, priority: int) -> None:
        """Give ``job``, which waits, another priority: it goes behind its new equals."""
        outermost = self.begin()
        place = next(self._order)
        session = job._session_lane
        if session is not None:
            session.move(job, priority, place)
            self.touch(session)
        else:
            job._lane.remove(job)
            job._priority, job._arrival = priority, place
            job._lane.send(job)
            self.touch(job._lane)
        if outermost:
            self.serve()

    # ---- all of them

    def actors(self) -> list[Actor]:
        """Every lane that is alive, of both layers."""
        return [*self.lanes.values(), *self.sessions.values()]

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(lane.waiting for lane in self.lanes.values())

    @property
    def active(self) -> int:
        """How many jobs run."""
        return sum(lane.active for lane in self.lanes.values())

    def withdraw_all(self, jobs: Iterable[AnyJob], error: Callable[[AnyJob], Exception]) -> int:
        """Withdraw those of ``jobs`` that still wait, as one transition; how many there were."""
        outermost = self.begin()
        withdrawn = 0
        for job in list(jobs):
            if job._state is WAITING:  # what an instrument does may have been faster
                self.withdraw(job, error(job))
                withdrawn += 1
        if outermost:
            self.serve()
        return withdrawn

    def close(self, reason: str, retry_after: float | None = None) -> None:
        """Refuse new work from outside from now on."""
        if self.closing is None:
            outermost = self.begin()
            self.closing = LanesClosedError(reason, retry_after)
            self._refuse_entrants(by_jobs=False)
            if self.hooks.lanes_closing:
                self.hooks.call(self.hooks.lanes_closing, reason, retry_after)
            if outermost:
                self.serve()

    def shut_down(self, reason: str) -> None:
        """Start nothing any more: whatever waits settles with `LanesClosedError`."""
        if not self.shut:
            outermost = self.begin()
            self.shut = True
            self.close(reason)
            self._refuse_entrants(by_jobs=True)
            for lane in self.lanes.values():
                self.withdraw_all(lane.waiting_jobs(), lambda job: self.refusal())
            if outermost:
                self.serve()

    def _refuse_entrants(self, *, by_jobs: bool) -> None:
        for actor in self.actors():
            for entrant in list((actor.room_line or {}).values()):
                if by_jobs or not entrant.by_job:
                    self._turn_away(entrant)
                    trio.lowlevel.reschedule(entrant.task, outcome.Error(self.refusal()))

    def refusal(self) -> LanesClosedError:
        """A new error that says why the lanes are closed."""
        assert self.closing is not None
        return LanesClosedError(self.closing.reason, self.closing.retry_after)
