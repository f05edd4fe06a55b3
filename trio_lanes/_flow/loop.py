"""The loop: the five steps of every job, and the only place where lanes act.

Theory of operation
-------------------
A job goes through five steps, which stand in this order below::

    submit    it gets its number, and its place in its session or in its global lane
    forward   it leaves its session's queue and enters its global lane's mailbox
    start     it takes its slot, and is granted to a worker
    run       a worker runs its body
    settle    it gives its slot back, its outcome is kept, its waiters wake

All steps but *run* are *acts*: an act is a synchronous change of state, complete when it returns. A
call from outside (a submission, the end of a body, a pause, a timer) opens a *batch*: it acts, and
*touches* the actors that may act now. At the end of the outermost call the batch is served: the
loop asks each touched session which job to forward, and each touched lane and group which job may
start, and acts on the answers, until no actor is touched. Actors answer and own their data; the
loop acts.

Acts have effects outside of the lanes: hooks are called, waiting tasks are woken, tasks are
started, scopes are cancelled. Each of these may run code of the application, or of an instrument
of Trio's, which may submit, clear, reset or configure. So effects wait until the act is complete
(`Scheduler.after_act`) and come before the next act. No act is ever entered while another is
under way, and no other module of this library guards against it.

What follows jobs and does not move them hangs on *joints* (`_observe.joints`): the hooks of jobs
and of quiet lanes, the accounts of waits, the tuners of limits. A joint may note, in the middle of
an act; it may not act. Three features act in the middle of the steps, and so stand here:

* Coalescing edits a job that waits: the job is taken out of its place and is given another, by
  what is private to *submit* and *settle*. A module of its own would use most of the loop, and
  the loop that module.
* Room decides whether and when a submission is accepted: `serve` admits one request at a time,
  when no actor is touched: only then is it known which job would start at once.
* Closing refuses and withdraws all that waits, in one batch, whatever state the loop is in, also
  after an act that was broken off.

Invariants
----------
* Outside of a batch, each job that can be forwarded has been forwarded, each job that can start has
  started, and each hook has been called.
* Sessions are served before lanes, lanes before groups, and all of them before requests for room: a
  lane knows all jobs that it may start before it starts one, and a group knows the heads of all its
  lanes.
* A batch is a loop and never recursive: jobs that let each other start take no stack.
* An abort function acts, and serves nothing: `Scheduler.act_in_abort`. Until the next batch, which
  comes at the latest in the next turn of Trio's entry queue, the first invariant does not hold.
* An act that is broken off (a `RecursionError`, a key of the application whose hash raises) leaves
  the lanes in an unknown state: they end with an error (`Scheduler.broke_down`).
* A batch has one time, ``now``: the time at which it began.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any, Final, final
from weakref import WeakSet

import outcome
import trio

from .._actors.actor import Actor, Served
from .._actors.group import Group
from .._actors.job import CORRECTED, AnyJob, Blocker, Charge
from .._actors.lane import LaneActor
from .._actors.options import NO_EXTRAS
from .._actors.session import SessionActor
from .._actors.shared_limiter import SharedTokenRequest
from .._actors.state import (
    CANCELLED,
    FAILED,
    HELD,
    NONE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    WANTED,
    JobState,
    advance,
)
from .._actors.wait import RoomRequest
from .._config.errors import JobCancelledError, QueueTimeoutError
from .._config.exact import Amount, exact
from .._config.reasons import ENDLESS, Cause
from .._limits.rate import costs_of
from .._observe.announcer import Announcer
from .._observe.hooks import Hooks
from .._observe.joints import Joints
from .._observe.overdue import Overdue
from .._observe.wait_warnings import WaitWarnings, warn_of_long_debt
from .._queue.timers import Timers
from .._waiting import deadlock
from .._waiting.accounts import Accounts
from .._waiting.blockers import blockers, newcomers_blockers
from .._waiting.causes import root_causes
from .._waiting.current import jobs_by_task, jobs_here
from .._waiting.room import Room, first_without_room
from .._waiting.waits import TaskWaits
from .._waiting.watch import Watches
from . import lending, parking, pausing
from .closing import Closing
from .registry import Registry
from .settling import Ends, Verdict, interrupted, raised
from .tuning import Tuning
from .workers import MAX_HIRED, WorkerPool

_schedulers: Final[WeakSet[Scheduler]] = WeakSet()  # of this process


def _disown() -> None:
    """Mark the schedulers as those of the parent, in a child process that was just forked."""
    for scheduler in _schedulers:
        scheduler.thread = None


if sys.platform != "win32":  # pragma: no branch - a process is forked only elsewhere
    os.register_at_fork(after_in_child=_disown)


@final
class Scheduler:
    """All lanes of one `open_lanes`, and the jobs in them."""

    # An object without slots keeps up to thirty attributes as cheaply; here are more.
    __slots__ = (
        "__weakref__",
        "_context",
        "_effects",
        "_next_arrival",
        "_next_id",
        "_next_return",
        "_nursery",
        "_to_do",
        "_to_retime",
        "_wait_warnings",
        "announcer",
        "broken",
        "closing",
        "coalesced",
        "current_time",
        "ends",
        "hooks",
        "joints",
        "lanes",
        "now",
        "overdue",
        "registry",
        "room",
        "run_body",
        "running",
        "serving",
        "sessions",
        "thread",
        "timers",
        "token",
        "tuning",
        "unserved",
        "waits",
        "watches",
        "workers",
    )

    def __init__(self, nursery: trio.Nursery, hooks: Hooks, *, wait_accounting: bool) -> None:
        self._nursery: Final = nursery
        self._context: Final = copy_context()  # the context of the lanes' own tasks
        self.current_time: Final = trio.lowlevel.current_clock().current_time
        # The only thread in which lanes may change; None in a forked child of its process
        self.thread: int | None = get_ident()
        _schedulers.add(self)
        self.token: Final = trio.lowlevel.current_trio_token()
        self.now = 0.0  # when the present batch began
        self.serving = False  # whether there is a batch
        self.unserved = False  # whether an abort function has acted since the last `catch_up`
        self.broken: BaseException | None = None  # the error that broke an act off
        self._effects: Final[deque[tuple[Callable[..., object], tuple[Any, ...]]]] = deque()
        self._to_retime: Final[dict[Served, None]] = {}  # those whose `wake_at` may have changed

        self.joints: Final = Joints()
        accounts = Accounts()
        if wait_accounting:
            self.joints.add(accounts)
        self.tuning: Final = Tuning(self)
        self.registry: Final = Registry(self._ask_for_tokens, accounts.left_line)
        self.lanes: Final = self.registry.lanes
        self.sessions: Final = self.registry.sessions
        self.closing: Final = Closing()
        # {key: jobs that were submitted with it and have not ended; only the last may wait}
        self.coalesced: Final[dict[Hashable, dict[AnyJob, None]]] = {}

        self.hooks: Final = hooks
        self.announcer: Final = Announcer(
            hooks, self.joints, self.after_act, lambda: self.registry.actors
        )
        self.announcer.hooks_changed()
        self.timers: Final = Timers(self.spawn, self.batch, self.after_act)
        self.overdue: Final = Overdue(hooks, self.spawn)

        table = jobs_by_task()
        self.running: Final = table  # {task: the job it runs}
        tell_refused = partial(self.announcer.tell, hooks.deadlock_refused)
        self.watches: Final = Watches(table, self.lanes, tell_refused)
        self.room: Final = Room(self.lanes, self._to_retime)
        self.waits: Final = TaskWaits(self, table, self.room, self.watches, tell_refused)
        self._wait_warnings: Final = WaitWarnings(self.timers, hooks, self.waits.look_at_stray)
        self.workers: Final = WorkerPool(
            table,
            self._spawn_now,
            self.overdue.expect,
            self.returned,
            self.raised,
            self.interrupted,
        )
        # Takes a job that has its slots, and runs its body; `aio` has some run outside of Trio
        self.run_body: Callable[[AnyJob], object] = self.workers.granted.append

        # What there is to do in a batch, in this order
        self._to_do: Final = (
            self._effects,
            self.registry.session_turns,
            self.registry.lane_turns,
            self.registry.group_turns,
            self.room.lines_to_serve,
            self.workers.granted,
            self._to_retime,
        )
        # Numbers of jobs. The place of a job in its session is its number; or, if it joins the
        # session later, or again, another number, which then is that of no job.
        self._next_id: Final = count(1).__next__
        # Arrivals in global lanes: behind all other jobs; and, for jobs that are readmitted, before
        # all other jobs, but behind other readmitted jobs.
        self._next_arrival: Final = count(1).__next__
        self._next_return: Final = count(-(2**62)).__next__
        self.ends: Final = Ends()

    # ---- batches

    def begin(self) -> bool:
        """Begin a batch; return whether this is its outermost call, which must `serve` at its end.

        Raises:
          RuntimeError: in another thread; then nothing has changed.
        """
        if get_ident() != self.thread:  # checked here as well, to spare every job a call
            self.check_thread()
        if self.serving:
            if self.broken is not None:  # that batch never ends
                self.broke_down(self.broken)
            return False
        self.now = self.current_time()
        self.serving = True
        return True

    @contextmanager
    def batch(self) -> Iterator[None]:
        """`begin`, and `serve` in any case: for calls that are not made for every job."""
        outermost = self.begin()
        try:
            yield
        finally:
            if outermost:
                self.serve()

    @contextmanager
    def act_in_abort(self) -> Iterator[None]:
        """Act in an abort function of Trio, and serve what the act touches soon, in a task.

        Trio calls abort functions while it walks over the tasks of a cancel status. Whoever adds a
        task to that status meanwhile breaks the walk, and with it the run: so would a callback or a
        hook that starts a task in the nursery of the application in which the caller waits. Thus
        effects wait here. The next batch serves the rest, or `run_sync_soon` does, if none comes.
        """
        outermost = self.begin()
        try:
            yield
        finally:
            if outermost:
                self.serving = False
                self.unserved = True
                self.token.run_sync_soon(self.catch_up, idempotent=True)

    def catch_up(self) -> None:
        """Serve what abort functions have left."""
        if self.unserved and not self.serving:
            self.unserved = False
            # An error has ended the lanes, and would end the whole run of Trio here.
            with suppress(BaseException), self.batch():
                pass

    @property
    def parent_task(self) -> trio.lowlevel.Task:
        """The task that has opened the lanes' nursery."""
        return self._nursery.parent_task

    def check_thread(self) -> None:
        """Refuse a call from another thread, inside of Trio or not: it would break the lanes."""
        self.check_process()
        if get_ident() != self.thread:
            raise RuntimeError("lanes belong to one thread; use Lanes.portal() in others")

    def check_process(self) -> None:
        """Refuse a call in a forked child: nothing there runs the jobs of these lanes."""
        if self.thread is None:
            raise RuntimeError(
                "these lanes belong to the parent of this forked process; open others"
            )

    def broke_down(self, error: BaseException) -> None:
        """End the lanes: ``error`` broke an act off, and the batch never ends.

        The error came from a stack that is too deep, from an object of the application that is a
        key here, or from a bug. No actor is served any more, so the lanes end instead of standing
        still. If the stack is too deep even for the call below, the next `begin` makes it again.
        """
        if self.broken is None:
            self.broken = error
        self.token.run_sync_soon(self._nursery.cancel_scope.cancel, idempotent=True)

    def after_act(self, effect: Callable[..., object], *args: Any) -> None:
        """Call ``effect(*args)`` when the present act is complete.

        At once outside of a batch, and after an act that was broken off: that batch never ends.
        """
        if self.serving and self.broken is None:
            self._effects.append((effect, args))
        else:
            effect(*args)

    def call_soon(self, effect: Callable[..., object], *args: Any) -> None:
        """Call ``effect(*args)`` between two acts, or, in a batch, in a later turn of Trio.

        So callbacks that add callbacks take no stack, and let others run.
        """
        if self.serving and not self.closing.ended:
            self.token.run_sync_soon(effect, *args)
        else:  # a guest run may be over, and call nothing soon
            with self.batch():
                self.after_act(effect, *args)

    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task of the lanes' own, after the present act."""
        self.after_act(self._spawn_now, fn)

    def _spawn_now(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # A copy, since this may be called while the context itself is entered: instruments of Trio
        # see the task that is spawned here, and may submit.
        self._context.copy().run(self._nursery.start_soon, fn)

    def serve(self) -> None:
        """End the outermost call of a batch: do all that can be done now."""
        effects, sessions, lanes, groups, unseen, granted, to_retime = self._to_do
        workers = self.workers
        try:
            while True:
                if effects:
                    effect, args = effects.popleft()
                    effect(*args)
                elif sessions:
                    self._serve_session(sessions.popleft())
                elif lanes:
                    self._serve_lane(lanes.popleft())
                elif groups:
                    self._serve_group(groups.popleft())
                # After lanes and groups: only now is it known which jobs start, and need no room.
                elif unseen and (request := self.room.next_entry(self.now)) is not None:
                    self._answer_request(request, outcome.Value(request.job))
                    self.submit(request.job)
                # After all starts, so that one worker can take several of the jobs.
                elif (
                    granted
                    and not workers.stepping
                    and workers.ready < MAX_HIRED
                    and workers.ready < len(granted)
                ):
                    workers.hire()
                elif to_retime:
                    self._set_clock(to_retime.popitem()[0])
                else:
                    for note in self.joints.on_batch_end:
                        note(self.now)
                    if not effects:
                        break
        except BaseException as error:
            self.broke_down(error)
            raise
        self.serving = False
        if self.watches.due:  # conditions on lanes are checked between batches
            self.watches.check()

    def _serve_session(self, session: SessionActor) -> None:
        session.touched = False
        while session.waiting or session.rates.units or session.readmitting:
            forward = session.next_forward(self.now)
            if forward is None:
                break
            job, arrival, more = forward
            self._forward(job, arrival)
            if self._effects:  # effects come before the next act
                session.touch_first()
                return
            if not more:
                break
        if session.rates.units or session.timer is not None:
            self._wait_for_rate(session, session)
        if self.room.length:
            self.room.look_at(session)
        if session.watched and not (session.waiting and session.running):
            self.watches.look_at(session)
        if self.joints.on_served:
            for note in self.joints.on_served:
                note(session)
        if not (session.waiting or session.running or session.passed_requests or session.room_line):
            if session.rates.units or session.paused:
                self._retire(session)
            else:
                self.registry.forget_session(session)

    def _serve_lane(self, lane: LaneActor) -> None:
        lane.touched = False
        if lane.mailbox.count or not lane.plain:
            lane.begin_turn()
        group = lane.group
        if group is not None:
            group.offer(lane, self.now)
            group.touch()
        else:
            sessions = self.registry.session_turns
            while lane.slots < lane.concurrency and (
                lane.line.items or lane.slot_requests or not lane.plain
            ):
                job = lane.next_start(self.now)
                if job is None:
                    break
                self._start(job)
                if self._effects or sessions:  # both come first: a session may take jobs back
                    lane.touch_first()
                    return
        if lane.slot_requests:
            self._forgo_slots(lane)
        if lane.rates.units or lane.timer is not None:
            self._wait_for_rate(lane, lane)
        if lane.warning is None:
            if len(lane.bound) > lane.own_warn_after or lane.slot_requests:
                self._wait_warnings.watch_lane(lane)
        elif not (lane.slots or lane.bound or lane.without_slot):
            # Not as soon as no job waits: a busy lane is often empty for a moment.
            lane.cancel_warnings()
        if self.room.length:
            self.room.look_at(lane)
        if lane.watched and not (
            (lane.bound or lane.delayed) and (lane.slots or lane.without_slot)
        ):
            self.watches.look_at(lane)
        if self.joints.on_served:
            for note in self.joints.on_served:
                note(lane)
        if lane.from_template and not lane.room_requests:
            self._retire(lane)

    def _serve_group(self, group: Group) -> None:
        group.touched = False
        job = group.next_start(self.now)
        if job is not None:
            self._start(job)
            job._lane.touch()  # it has another head to offer
        elif group.limited is not None:
            self._wait_for_rate(group, group.limited)
        if self.room.length:
            self.room.look_at(group)
        for note in self.joints.on_served:
            note(group)

    def _wait_for_rate(self, served: Actor | Group, lane: Actor) -> None:
        """Have the timer of ``served`` set by its rates.

        If they hold the head of ``lane``, hooks are told so, and until when.
        """
        self._to_retime[served] = None
        until = served.rate_until
        if until > self.now and until != served.announced_until:
            served.announce_rate()
            self.announcer.tell_of_lane(self.hooks.lane_rate_limited, lane, until)
            warn_of_long_debt(served, self.now)

    def _set_clock(self, served: Served) -> None:
        """Have ``served`` touched at its ``wake_at``, and at no other time."""
        timer, when = served.timer, served.wake_at
        if timer is not None and timer.is_set and timer.when == when:
            return
        never = when == math.inf
        served.keep_timer(None if never else self.timers.call_at(when, served.touch, alone=False))

    def _retire(self, actor: Actor) -> None:
        """Forget ``actor``, unless it is in use: at once, or when its rates have refilled."""
        if actor.is_in_use:
            return
        if actor.rates.units and not self.closing.shut:
            refilled = actor.rates.refilled_at(self.now)
            if refilled > self.now:
                actor.wake_by(refilled)
                self._to_retime[actor] = None
                return
        self.registry.forget(actor)

    # ---- 1. submit

    def submit(self, job: AnyJob) -> None:
        """Accept ``job``: it gets its number and its place."""
        if outermost := not self.serving and get_ident() == self.thread:  # as `begin` does
            self.now = self.current_time()
            self.serving = True
        else:
            self.begin()
        try:
            lane: LaneActor = job._lane
            session: SessionActor | None = None
            options = job._options
            if lane.from_template:
                lane = job._lane = self.bring_to_life(lane)
            job.id = self._next_id()
            job.submitted_at = self.now
            if job.session is not None:
                key = job.session
                session = self.sessions.get(key) or self.registry.revive_session(key)
                job._session_lane = session
            if options.delay:
                self._postpone(job)
            else:
                self._join(job, job.id)
            if options.coalesce is not None:
                self._note_key(job, options.coalesce.key)
            joints = self.joints
            if joints.on_placed:
                for note in joints.on_placed:
                    note(job)
            if outermost:
                to_act = lane.touched or (session and session.touched)
                if to_act or self._effects or joints.on_batch_end or self.watches.due:
                    self.serve()
                else:  # other jobs are before this one
                    self.serving = False
        except BaseException as error:
            self.broke_down(error)
            raise
        if self.waits.inside and not options.yield_slot:  # with it, `run` checks when it has lent
            self.waits.check_accepted(job)
        if not options.queue_timeout:
            if outermost:
                self._out_of_time(job)
            else:  # by a callback or a hook: first the lanes are served
                self._set_timer(job, 0, self._out_of_time)

    def _join(self, job: AnyJob, place: int) -> None:
        """Give ``job`` its place in its session, or its arrival in its global lane."""
        job._waiting_since = self.now
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        lane.bound[job.id] = job
        if session is None:
            lane.receive(job, self._next_arrival())
        else:
            session.receive(job, place)
        if lane.warning is None:
            lane.touch()  # the wait counts there, though the session may hold the job
        options = job._options
        if options is not NO_EXTRAS or self.hooks.job_waiting_long:
            self._wait_warnings.watch(job)
            if 0 < options.queue_timeout < math.inf:
                self._set_timer(job, options.queue_timeout, self._out_of_time)

    def _postpone(self, job: AnyJob) -> None:
        """Let ``job`` take its place when its delay is over."""
        job._waiting_since = -math.inf  # also if it has waited before
        job._lane.postpone(job)
        if job._session_lane is not None:
            job._session_lane.postpone(job)
        self._set_timer(job, job.submitted_at + job._options.delay - self.now, self._due)
        if job._options.delay >= ENDLESS and not self.closing.is_open:
            # as `close` has done with those that were held before
            self.after_act(self.withdraw, job, self.closing.error())

    def _due(self, job: AnyJob) -> None:
        with self.batch():
            _forget_delay(job)
            self._take_place(job)
        self._has_place(job)

    def _take_place(self, job: AnyJob) -> None:
        # A job with a key keeps the place of its first submission.
        self._join(job, self._next_id() if job._options.coalesce is None else job.id)

    def _has_place(self, job: AnyJob) -> None:
        self.waits.check_accepted(job)
        if not job._options.queue_timeout:
            self._out_of_time(job)

    def put_off(self, job: AnyJob, delay: float) -> None:
        """`Job.put_off`, of a job that waits: its room is not free in between."""
        with self.batch():
            self._cancel_timers(job)
            self._take_out(job)
            job._options.delay = self.now - job.submitted_at + delay
            if job._session_lane is not None:
                job._session_lane.touch()  # another job may be its first now
            job._lane.touch()
            if delay:
                self._postpone(job)
            else:
                self._take_place(job)
        if not delay:
            self._has_place(job)

    def _set_timer(self, job: AnyJob, delay: float, call: Callable[[AnyJob], None]) -> None:
        timer = self.timers.call_at(self.now + delay, partial(call, job))
        job._keep_timer(timer)

    def _out_of_time(self, job: AnyJob) -> None:
        if job._state is WAITING and job.id not in job._lane.delayed:
            self.withdraw(job, QueueTimeoutError(job._options.queue_timeout))

    # ---- submissions of one key become one job

    def job_of_key(self, newest: AnyJob) -> AnyJob | None:
        """Return the job that ``newest``, which has a key, is to join, or None.

        Raises:
          ValueError: if that job is of another session, lane or event loop.
        """
        coalesce = newest._options.coalesce
        assert coalesce is not None
        jobs = self.coalesced.get(coalesce.key)
        if jobs is None:
            return None
        job = next(reversed(jobs))
        if job._state is not WAITING and (coalesce.while_running == "wait" or job.cancel_called):
            return None
        there, here = ((one.session, one.lane, type(one)) for one in (job, newest))
        if there != here:
            raise ValueError(
                f"coalesce: the key {coalesce.key!r} is that of {job!r}; a submission to session "
                f"{newest.session!r}, lane {newest.lane!r} cannot join it: make these, and the "
                "event loop, part of the key"
            )
        return job

    def coalesce(self, newest: AnyJob) -> AnyJob | None:
        """Let the job that has the key of ``newest`` stand for that as well, and return it.

        None if there is no such job; then, and if `job_of_key` raises, nothing has changed.
        """
        with self.batch():
            job, coalesce = self.job_of_key(newest), newest._options.coalesce
            if job is None:
                return None
            assert coalesce is not None
            if newest._unhandled:
                job._let_failure_leave()
            until = min(self.now + coalesce.debounce, job.submitted_at + coalesce.max_wait)
            is_delayed = job.id in job._lane.delayed
            if job._state is WAITING and (is_delayed or until > self.now):
                self._cancel_timers(job)
                self._take_out(job)
                job._take_over(newest, coalesce.keep)
                if coalesce.keep == "latest":
                    job._priority = newest._priority
                job._options.delay = max(until, self.now) - job.submitted_at
                if until > self.now:
                    self._postpone(job)
                else:
                    self._join(job, job.id)
            elif job._state is WAITING and coalesce.keep == "latest":
                self._replace_in_line(job, newest)
            else:
                job._take_over(newest, "first")
        self.waits.check_accepted(job)
        return job

    def _replace_in_line(self, job: AnyJob, newest: AnyJob) -> None:
        """Let ``job`` be what ``newest`` was to be; it keeps its place where that can be kept."""
        self._cancel_timers(job)
        lane: LaneActor = job._lane
        options = newest._options
        rewatched = job._options.is_watched or options.is_watched
        if rewatched:
            lane.forget_warnings(job)
        # Out, and in again at the same arrival: a fair lane keeps the turn of an owner where its
        # first job stands, and this is another owner.
        arrival = lane.remove(job) if job._arrival and job.owner != newest.owner else 0
        job._take_over(newest, "latest")
        if arrival:
            lane.receive(job, arrival)
        if rewatched:
            self._wait_warnings.watch_again(job)
        if options.queue_timeout != math.inf:
            self._set_timer(job, options.queue_timeout, self._out_of_time)
        if job._priority != newest._priority:
            self.set_priority(job, newest._priority)
        lane.touch()  # it may have another cost
        if job._session_lane is not None:
            job._session_lane.touch()

    def _note_key(self, job: AnyJob, key: Hashable) -> None:
        """Note ``job``, which is accepted, as that of ``key``; requests for room join it."""
        self.coalesced.setdefault(key, {})[job] = None
        for request in [*self.room.by_key.get(key, {}).values()]:
            self._drop_request(request)
            what = outcome.capture(self.coalesce, request.job)
            self.after_act(self._answer_request, request, what)

    def _forget_key(self, job: AnyJob, key: Hashable) -> None:
        """``job`` has ended."""
        jobs = self.coalesced.pop(key, {})
        jobs.pop(job, None)
        if jobs:
            self.coalesced[key] = jobs

    # ---- 2. forward

    def _forward(self, job: AnyJob, arrival: int) -> None:
        """Send ``job``, which its session has taken out, to the mailbox of its global lane."""
        if job._slot is QUEUED:  # it runs, and is readmitted
            job._lane.readmit(job, self._next_return())
            return
        job._lane.receive(job, arrival or self._next_arrival())
        if self.joints.on_placed:
            for note in self.joints.on_placed:
                note(job)

    # ---- 3. start

    def _start(self, job: AnyJob) -> None:
        """Give ``job``, which its lane has taken out of line, a slot: its first, or a new one."""
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        slot, now = job._slot, self.now
        lane.take_slot(job, now)
        if slot is WANTED:  # its start was charged, and its session still counts it
            self._resume(job)
            return
        is_rated = not lane.plain
        if session is not None and session.rates.units:
            is_rated = True
            session.charge(job, now)
        if is_rated or slot is QUEUED:  # which replaces the charge of its start
            job._charge = Charge(job._costs, now, lane.group)
        if slot is QUEUED:
            if session is not None:
                session.readmitted(job)
            self._resume(job)
            return
        advance(job, RUNNING)
        job.started_at = job._progress_at = now
        if session is not None:
            session.started(job)
        lane.unbind(job)
        if job._timers:
            self._cancel_timers(job)
        if self.joints.on_started:
            for note in self.joints.on_started:
                note(job)
        self.run_body(job)
        if job._waiters:
            self.after_act(self.waits.wake, job)

    def _resume(self, job: AnyJob) -> None:
        """``job``, which runs, holds a slot again."""
        lending.slot_came(self, job)
        if job._waits:
            self.after_act(self.waits.break_deadlocks, deadlock.end_of(job))
        if job._options.limits_run:
            self.overdue.expect(job)  # its idle clock has begun again

    def _forgo_slots(self, lane: LaneActor) -> None:
        """Let cancelled jobs that want slots back go on without slots if none can come."""
        cancelled = [job for job, is_cancelled in lane.slot_requests.items() if is_cancelled]
        if cancelled and deadlock.can_never_regain_slot(next(iter(lane.slot_requests))):
            for job in cancelled:
                lending.forgo(self, job)

    def _cancel_timers(self, job: AnyJob) -> None:
        """Cancel the timers of ``job``, which waits no more."""
        for timer in job._timers or ():
            timer.cancel()
        job._timers = None

    # ---- 4. run: a worker runs the body, under the scope of the job, and reports how it ended

    def returned(self, job: AnyJob, value: Any) -> None:
        """The body of ``job`` returned ``value``."""
        if self.overdue.watched:
            self.overdue.ended(job)
        if job._state is RUNNING:
            self._finish_running(job, SUCCEEDED, value, None)
        else:  # it was reset
            self._abandoned_ended(job)

    def raised(self, job: AnyJob, error: BaseException) -> BaseException | None:
        """``error`` left the body of ``job`` and its scope; return the error to leave its task."""
        return self.settle_after_error(job, raised(error), error)

    def interrupted(self, job: AnyJob) -> BaseException | None:
        """The scope of ``job`` ended its body; return the error that leaves its task."""
        verdict = interrupted(job)
        return self.settle_after_error(job, verdict, verdict.error)

    def settle_after_error(
        self, job: AnyJob, verdict: Verdict, error: BaseException
    ) -> BaseException | None:
        """Let ``job`` settle by ``verdict``; return the error that leaves its task."""
        leaves, why = verdict.leaves, None
        if job._state is RUNNING:
            if verdict.state is FAILED and (job._unhandled or leaves is error):
                leaves = error
                job._let_failure_leave()
            if leaves is not None:
                why = "the lanes were cancelled"
                if verdict.state is FAILED and leaves is error:  # not a cancellation from outside
                    why = f"a job raised {type(error).__name__}"
        if why is None:
            self._body_ended(job, verdict)
        else:
            # One batch: no job starts in its place, and its waiters wake before they are cancelled.
            with self.batch():
                self._body_ended(job, verdict)
                self.crash(why)
        return leaves

    def _body_ended(self, job: AnyJob, verdict: Verdict) -> None:
        self.overdue.ended(job)
        if job._state is RUNNING:
            self._finish_running(job, verdict.state, None, verdict.error)
        else:  # it was reset
            self._abandoned_ended(job)

    def _abandoned_ended(self, job: AnyJob) -> None:
        self.ends.given_up -= 1
        job._lane.count_abandoned(-1)

    # ---- 5. settle

    def _finish_running(
        self, job: AnyJob, state: JobState, value: Any, error: BaseException | None
    ) -> None:
        """``job``, which ran, gives its slots back and settles."""
        if outermost := not self.serving:  # as `begin` does, on every job's way
            self.now = self.current_time()
            self.serving = True
        else:
            self.begin()
        try:
            for note in self.joints.on_ended:
                note(job, state, error)
            lane: LaneActor = job._lane
            session: SessionActor | None = job._session_lane
            if session is not None:  # first: its next job competes for the slot in the lane
                session.ended(job)
            if job._slot is HELD:
                lane.give_slot_back(job, NONE)
            else:
                lending.stop(self, job)
            self._settle(job, state, value, error)
            if outermost:
                self.serve()
        except BaseException as exc:
            self.broke_down(exc)
            raise

    def _settle(
        self, job: AnyJob, state: JobState, value: Any, error: BaseException | None
    ) -> None:
        advance(job, state)
        job._settled(self.now, value, error)
        if self.coalesced and (coalesce := job._options.coalesce) is not None:
            self._forget_key(job, coalesce.key)
        if state is not CANCELLED:
            self.ends.by_themselves += 1
        if state is not SUCCEEDED:
            job._lane.count_end(job)
        if state is FAILED and not job._unhandled:
            self.ends.watch_failure(job)
        if self.joints.on_settled:
            for note in self.joints.on_settled:
                note(job)
        job._context = job._session_lane = None
        if job._waiters:
            self.after_act(self.waits.wake, job)

    def withdraw(self, job: AnyJob, error: Exception) -> None:
        """Settle ``job``, which waits, with ``error``, and cancel its scope. It never starts."""
        outermost = self.begin()
        try:
            lane: LaneActor = job._lane
            session: SessionActor | None = job._session_lane
            scope = job._scope
            assert scope is not None
            scope.cancel()  # now: no task has entered it, so this runs no code of others
            self._take_out(job)
            if session is not None:
                session.touch()
            lane.touch()
            self._cancel_timers(job)
            self._settle(job, CANCELLED, None, error)
            if outermost:
                self.serve()
        except BaseException as exc:
            self.broke_down(exc)
            raise

    def _take_out(self, job: AnyJob) -> None:
        """Take ``job``, which waits, out of the tables of its lanes."""
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        if job.id in lane.delayed:
            _forget_delay(job)
            return
        if self.broken is not None:  # an act broke off, so the tables may be wrong
            if session is not None:
                session.lose_count_of_one()
        elif session is not None:
            session.remove(job)
        else:
            lane.remove(job)
        lane.unbind(job)

    def withdraw_all(self, jobs: Iterable[AnyJob], error: Callable[[AnyJob], Exception]) -> int:
        """Withdraw ``jobs``, which wait, in one batch; return how many there were."""
        with self.batch():
            waiting = list(jobs)
            for job in waiting:
                self.withdraw(job, error(job))
        return len(waiting)

    # ---- a job that runs is stopped

    def cancel(self, job: AnyJob, reason: str | None) -> bool:
        """`Job.cancel`."""
        self.check_thread()
        error = JobCancelledError(reason)
        if job._state is WAITING:
            self.withdraw(job, error)
        elif job._state is RUNNING:
            self.interrupt(job, error)
        else:
            return False
        return True

    def interrupt(self, job: AnyJob, error: JobCancelledError) -> None:
        """Cancel the body of ``job``; if that ends it, it settles with ``error``."""
        with self.batch():
            scope = job._scope
            assert scope is not None
            self.overdue.cancel([job])
            if job._interruption is None and not scope.cancel_called:
                job._interruption = error
                self.announcer.tell(self.hooks.job_cancel_called, job, error.reason)
            job._lane.note_cancel_called(job)
            self.after_act(scope.cancel, error.reason)
            lending.was_cancelled(self, job)  # a shield may keep the cancellation from its tasks

    def abandon(self, job: AnyJob, error: JobCancelledError) -> None:
        """Cancel ``job``, which runs, and settle it now, even if its body goes on."""
        with self.batch():
            begun = job._task is not None  # else it never will
            job._interruption = None
            self.interrupt(job, error)
            job._interruption = error  # also if it was cancelled before
            if begun:
                self.ends.given_up += 1
                job._lane.count_abandoned(1)
                job._lane.forget_overdue(job)
            else:
                self.overdue.ended(job)
            self._finish_running(job, CANCELLED, None, error)

    # ---- lanes come to life

    def bring_to_life(self, lane: LaneActor) -> LaneActor:
        """Revive ``lane``, unless a lane of its name is alive; return the one that is."""
        alive = self.lanes.get(lane.name)
        if alive is None:
            self.check_thread()
            self.registry.revive_lane(lane)
            if lane.paused_until is not None:  # as its template is
                pausing.pause_until(self, lane, lane.paused_until)
            return lane
        return alive

    # ---- closing

    def close(self, reason: str, retry_after: float | None = None) -> int:
        """Refuse new work from outside from now on.

        Return how many jobs were withdrawn: those that are held, since nobody may release them any
        more.
        """
        if not self.closing.is_open:
            return 0
        with self.batch():
            self.closing.begin(reason, retry_after)
            self._refuse_requests(by_jobs=False)
            self.announcer.tell(self.hooks.lanes_closing, reason, retry_after)
            delayed = [job for lane in self.lanes.values() for job in lane.delayed.values()]
            held = (job for job in delayed if job._options.delay >= ENDLESS)
            return self.withdraw_all(held, lambda job: self.closing.error())

    def crash(self, reason: str) -> None:
        """`stop`, while an error is on its way out of the nursery: cancel the nursery at once.

        As in a nursery of Trio's, a task inside is cancelled by the failure of another, and is not
        told what follows from it: that the job it waits for was withdrawn. Else it would fail, too.
        """
        with self.batch():
            self.after_act(self._nursery.cancel_scope.cancel)  # before waiters are told
            self.stop(reason)

    def stop(self, reason: str) -> None:
        """`shut_down`, where the nursery is cancelled as well, and with it the jobs that run."""
        self.shut_down(reason)
        for lane in self.lanes.values():
            self.overdue.cancel(lane.running_jobs())
        if self.broken is not None:  # the batch that was broken off may have granted jobs
            while self.workers.ready < len(self.workers.granted):
                self.workers.hire()

    def shut_down(self, reason: str) -> None:
        """Start no job any more: waiting jobs settle with `LanesClosedError`."""
        if not self.closing.shut:
            with self.batch():
                self.closing.shut = True
                self.closing.over()
                self.close(reason)
                self._refuse_requests(by_jobs=True)
                for lane in [*self.lanes.values()]:
                    self.withdraw_all(lane.waiting_jobs(), lambda job: self.closing.error())
                # Else the lanes could not end before all pauses are over and all rates refilled.
                self.timers.stop()
                for actor in self.registry.actors:
                    actor.touch()  # it may go now
                for lane in self.lanes.values():
                    for job in lane.slot_requests:
                        lane.cancel_slot_request(job)
                    if self.broken is not None:  # no actor is served any more
                        if lane.token_request is not None:
                            lane.token_request.rest()
                        for job in [*lane.slot_requests]:
                            lending.forgo(self, job)

    def check_open(self, lane: LaneActor | None = None) -> None:
        """Refuse a submission by the current task, to ``lane``, if the lanes do not take it.

        Raises:
          LanesClosedError: unless they are open, or are not shut and the task is inside a job.
        """
        if not self.closing.is_open and (self.closing.shut or not self._is_inside):
            if lane is not None:
                self.announcer.tell_of_lane(self.hooks.job_rejected, lane, "closed")
            raise self.closing.refuse()

    @property
    def _is_inside(self) -> bool:
        """Whether the current task is inside a running job of these lanes."""
        return any(job._keeper is self and job._state is RUNNING for job in jobs_here(self.running))

    def _refuse_requests(self, *, by_jobs: bool) -> None:
        """Refuse the requests for room: all, or all that do not come from running jobs."""
        for actor in self.registry.actors:
            for request in list((actor.room_line or {}).values()):
                if by_jobs or not request.inside:
                    self.announcer.tell_of_lane(
                        self.hooks.job_rejected, request.job._lane, "closed"
                    )
                    self.refuse(request, self.closing.error())

    # ---- room

    def full(self, job: AnyJob) -> Actor | None:
        """Return the lane without room for ``job``, or in which others wait for room; or None."""
        if not (job._lane.bounded or self.registry.bounded_sessions):
            return None
        if self.unserved:  # until it is served, a job may wait that can start
            self.catch_up()
        session = None if job.session is None else self.registry.session_lane(job.session)
        return first_without_room(job, session, self.current_time(), at_rest=not self.serving)

    def request_room(
        self, job: AnyJob, on_decision: Callable[[outcome.Maybe[AnyJob]], None]
    ) -> RoomRequest:
        """Let ``job`` wait for room; ``on_decision`` is called when it is accepted or refused.

        It gets the job that was accepted, which is another one if that has the same key; or the
        error.
        """
        self.check_thread()
        key = job.session
        session = None if key is None else self.sessions.get(key)
        if key is not None and session is None:
            session = self.registry.revive_session(key)
        lane: LaneActor = job._lane
        if lane.from_template:  # alive, so that `configure`, `pause` and `clear` find it
            lane = job._lane = self.bring_to_life(lane)
        request = RoomRequest(job, self._is_inside, session, on_decision)
        with self.batch():
            for note in self.joints.on_asked:
                note(job)
            self.room.join(request, self.now)
        return request

    def drop_request(self, request: RoomRequest) -> None:
        """Remove ``request``, whose submitter gives it up."""
        request.on_decision = None
        if not request.is_over:
            self._drop_request(request)

    def _drop_request(self, request: RoomRequest) -> None:
        with self.batch():
            self.room.leave(request)
            request.job._lane.touch()  # which may have been alive only for this
            if request.session is not None:
                request.session.touch()

    def refuse(self, request: RoomRequest, error: Exception) -> None:
        """Remove ``request``, and give its submitter ``error``."""
        with self.batch():
            self._drop_request(request)
            self.after_act(self._answer_request, request, outcome.Error(error))

    def _answer_request(self, request: RoomRequest, what: outcome.Maybe[Any]) -> None:
        on_decision, request.on_decision = request.on_decision, None
        if on_decision is not None:
            on_decision(what)

    # ---- the requests of a handle

    async def park(self, target: AnyJob, *, until_started: bool) -> None:
        """`Job.wait_done` and `Job.wait_started`."""
        await parking.park(self, target, until_started=until_started)

    def blockers(self, job: AnyJob) -> tuple[Blocker, ...]:
        """`Job.blocked_by`."""
        return blockers(job, self.current_time())

    def root_causes(self, job: AnyJob) -> tuple[Cause, ...]:
        """`Job.root_causes`."""
        return root_causes(job, self.current_time())

    def newcomers_blockers(self, job: AnyJob) -> tuple[Blocker, ...]:
        """`Lanes.would_wait`."""
        session = None if job.session is None else self.registry.session_lane(job.session)
        job._waiting_since = now = self.current_time()
        # A rate may have refilled in this moment, before its timer: a submission would see to that.
        due = [one for one in (session, job._lane, job._lane.group) if one and one.wake_at <= now]
        if due:
            with self.batch():
                for served in due:
                    served.touch()
        return newcomers_blockers(job, session, now)

    def lend(self, job: AnyJob, reason: str | None) -> None:
        """`Job.yield_slot` begins."""
        lending.lend(self, job, reason)

    async def take_back(self, job: AnyJob, reason: str | None) -> None:
        """`Job.yield_slot` ends."""
        await lending.take_back(self, job, reason)

    async def readmit(self, job: AnyJob, cost: Amount | Mapping[str, Amount] | None) -> None:
        """`Job.readmit`."""
        await lending.readmit(self, job, cost)

    def want_slot(self, job: AnyJob, *, cancelled: bool) -> None:
        """Let ``job``, which runs, get a slot before all waiting jobs."""
        job._waiting_since = self.now
        job._lane.want_slot(job, cancelled=cancelled)

    def queue_again(self, job: AnyJob) -> None:
        """Let ``job``, which runs, queue again: before all waiting jobs of its priority."""
        job._waiting_since = self.now
        if job._session_lane is not None:
            job._session_lane.readmit(job)
        else:
            job._lane.readmit(job, self._next_return())

    def charge(self, job: AnyJob, units: Mapping[str, Amount]) -> None:
        """`Job.charge`."""
        if job.started_at is None or job._charge is CORRECTED:
            raise RuntimeError(f"{job!r} has not started, or this start was corrected before")
        if not units:  # nothing is corrected: a later call may correct
            return
        charge = job._charge or Charge(job._costs, job.started_at)
        lane, session = self.registry.lanes_of(job)
        lane.check_cost(costs_of(units), session, charge.group)
        with self.batch():
            job._charge = CORRECTED
            # Rates are charged, so their lanes must be alive to remember it.
            if lane.from_template and lane.rates.units:
                self.bring_to_life(lane)
            if session is not None and session.rates.units:
                self.sessions.setdefault(session.key, session)
            more = {
                unit: exact(used) - exact(charge.costs.get(unit, 0)) for unit, used in units.items()
            }
            for metered in (lane, session, charge.group):
                if metered is not None:
                    metered.correct(more, self.now, charge.at)

    def overloaded(self, job: AnyJob) -> None:
        """`Job.overloaded`."""
        self.tuning.overloaded(job)

    def set_priority(self, job: AnyJob, priority: int) -> None:
        """Give ``job``, which waits, another priority: it goes behind its new equals."""
        with self.batch():
            session: SessionActor | None = job._session_lane
            if job.id in job._lane.delayed:
                job._priority = priority
            elif session is not None:
                session.withhold(job)
                job._priority = priority
                session.replace(job, self._next_id())
            else:
                job._lane.remove(job)
                job._priority = priority
                job._lane.receive(job, self._next_arrival())
        # In its session it may stand behind a job now that needs what its waiter holds.
        if self.waits.inside and job._state is WAITING and job._session_lane is not None:
            self.waits.break_deadlocks(deadlock.start_of(job))

    def _ask_for_tokens(self, lane: LaneActor, limiter: trio.CapacityLimiter) -> SharedTokenRequest:
        def changed() -> None:
            with self.batch():
                lane.touch()

        return SharedTokenRequest(limiter, self.spawn, self.after_act, changed)


def _forget_delay(job: AnyJob) -> None:
    """``job``, which was not due, is due, or is taken out."""
    job._lane.forget_delay(job)
    if job._session_lane is not None:
        job._session_lane.forget_delay(job)
