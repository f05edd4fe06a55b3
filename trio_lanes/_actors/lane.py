"""A global lane: it starts jobs, as many at once as its limiter has tokens.

Theory of operation
-------------------
A job is *bound for* a lane from submission to start. The jobs that their sessions have forwarded,
and the jobs without a session, stand in the lane's line; the other jobs are still in their
sessions, or not due yet. The lane answers one question: which job may start now
(`LaneActor.next_start`)? These invariants hold:

* a job that has lent its slot and wants it back goes before all waiting jobs, also in a paused
  lane; while such a job wants a slot, no other job starts;
* then the head of the line starts, if the lane is not paused, the limiter has a free token, the
  rate limits of the lane admit the charge and, if the lane is in a group, the group does (`group`);
* no job overtakes a head that waits for its charge;
* the borrowers of the limiter are the jobs that hold a slot. ``slots`` counts them.

A lane is ``plain`` if only its own limiter and a pause can stop a start: then the code of a start
is short.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias, final

import attrs
import trio

from .._config.exact import Amount
from .._limits.adaptive import Adaptive, Tuner
from .._limits.rate import check_units
from .._queue.backlog import Backlog
from .._queue.timers import Timer
from .actor import NOT_PAUSED, Actor, Pausable, Turns, changed_by_others
from .job import AnyJob, Job, Metered
from .line import Displacement, Line, PlainLine, SharedLine
from .mailbox import Mailbox
from .options import NO_EXTRAS, LaneConfig
from .shared_limiter import SharedTokenRequest
from .state import FAILED, FORGONE, HELD, LENT, NONE, QUEUED, RUNNING, WANTED, Slot

if TYPE_CHECKING:
    from .group import Group
    from .session import SessionActor
    from .wait import RoomRequest

AskForTokens: TypeAlias = "Callable[[LaneActor, trio.CapacityLimiter], SharedTokenRequest]"
"""Makes the object by which a lane takes tokens of a shared limiter."""


@final
class LaneActor(Actor):
    """The lane that runs jobs of one kind, over all sessions."""

    __slots__ = (
        "_ask",
        "_name",
        "_noted",
        "_order",
        "abandoned",
        "bound",
        "cancelled",
        "cancelling",
        "defaults",
        "delayed",
        "ended_at",
        "failed",
        "finished",
        "from_template",
        "group",
        "label",
        "lanes",
        "left_line",
        "line",
        "overdue",
        "own_warn_after",
        "plain",
        "readmitting",
        "room_by_session",
        "room_heads",
        "room_requests",
        "slot_requests",
        "slots",
        "template",
        "token_request",
        "tuner",
        "unwarned",
        "unwarned_timer",
        "warning",
        "withdrawn",
        "without_slot",
    )

    limiter: trio.CapacityLimiter
    mailbox: Mailbox

    def __init__(
        self,
        name: str,
        label: str,
        config: LaneConfig,
        turns: Turns,
        lanes: Mapping[str, LaneActor],
        ask: AskForTokens,
        left_line: dict[AnyJob, None],
    ) -> None:
        self._name = name
        self.label = label  # its name, or the template that it comes from
        self.from_template = label != name  # whether it comes and goes, as session lanes do
        self.template: Pausable | None = None  # that it comes from
        self.lanes = lanes  # {name: global lane that is alive}, itself among them
        self._ask = ask
        # Takes the jobs that leave its line, or their delay, and have a log: when the batch ends,
        # the accounts of waits note where these wait now
        self.left_line = left_line
        # options that its jobs have unless they say otherwise
        self.defaults: Mapping[str, float] = {}
        self.line: Line = PlainLine()
        self._order = (math.inf, False)  # aging, and whether it is fair
        self.tuner: Tuner | None = None  # of an `Adaptive` concurrency
        self.delayed: dict[int, AnyJob] = {}  # {id: job that is not due yet}
        # {id: job}, in the order in which their waits began, in both layers. A dict would take
        # linear time to find its first item after many deletions at the front.
        self.bound: OrderedDict[int, AnyJob] = OrderedDict()
        # Of these: jobs with a warn_after, and so a timer, of their own. The lane has a timer only
        # while it has others
        self.own_warn_after = 0
        self.slots = 0  # tokens of the limiter that its jobs hold
        self.without_slot: dict[AnyJob, None] = {}  # jobs that run and hold no slot
        # {job that wants its slot back: whether it is cancelled meanwhile}
        self.slot_requests: OrderedDict[AnyJob, bool] = OrderedDict()
        self.token_request: SharedTokenRequest | None = None  # for a limiter that is shared
        self.group: Group | None = None
        # {session: {job: request for room in this lane}}: the requests of `room_line` by session,
        # without jobs that have a delay, which never start at once
        self.room_by_session: dict[SessionActor | None, OrderedDict[AnyJob, RoomRequest]] = {}
        # The sessions of `room_by_session` that may forward a job, by their first requests
        self.room_requests = 0  # requests for room of jobs that are bound for it
        self.room_heads: Backlog[SessionActor | None] = Backlog()
        self.readmitting = 0  # running jobs that stand in its line again
        self.finished = 0  # jobs that had started, ever
        # When one of these ended last, where its end lets none start; else a start says as much
        self.ended_at = -math.inf
        self._noted = 0  # jobs that had ended then
        self.failed = 0  # of these: FAILED
        self.cancelled = 0  # jobs, ever, whether they had started or not
        self.withdrawn = 0  # of these: that had not started
        self.cancelling: set[AnyJob] = set()  # jobs that run and were asked to stop
        self.abandoned = 0  # bodies that were given up by a reset, and have not ended
        # {job that runs although it was to stop long ago: when it was to}, in order of these times
        self.overdue: dict[AnyJob, float] = {}
        self.warning: Timer | None = None  # set for the oldest wait
        # {id: job bound for it of whose wait, when it is long, hooks are still to be called}
        self.unwarned: OrderedDict[int, AnyJob] = OrderedDict()
        self.unwarned_timer: Timer | None = None  # set for the first of them
        super().__init__(turns, config)
        self.mailbox = Mailbox()
        self.limiter = trio.CapacityLimiter(config.first_concurrency)
        self.set_config(config, -math.inf)

    @property
    def name(self) -> str:
        return self._name

    def set_config(self, config: LaneConfig, now: float) -> None:
        adaptive = config.concurrency
        if isinstance(adaptive, Adaptive):
            if self.tuner is None or self.tuner.config != adaptive:  # else it keeps what it learned
                self.tuner = Tuner(adaptive, self.concurrency)
            # from here on a number, as in every other lane
            config = attrs.evolve(config, concurrency=self.tuner.limit)
        else:
            self.tuner = None
        if config.warn_after != self.config.warn_after:
            self.cancel_warnings()  # they are set anew when the lane is served
        if self.token_request is not None and config.limiter is not self.limiter:
            self.token_request.rest()  # its task may be waiting for a token of the former one
        # No job holds a token of the former one: `configure` does this only while none runs here.
        if config.limiter is None:
            if self.token_request is not None:
                self.limiter = trio.CapacityLimiter(config.first_concurrency)
                self.token_request = None
        elif self.limiter is not config.limiter:
            self.limiter = config.limiter
            self.token_request = self._ask(self, config.limiter)
        if (config.aging, config.fair) != self._order:  # else the owners keep their turns
            self._order = (config.aging, config.fair)
            # as they came, since in a fair lane that makes the turns of their owners
            jobs = sorted(self.line.jobs(), key=lambda job: job._arrival)
            if config.fair or config.aging != math.inf:
                weights = dict(config.weights)  # which its reader may write to
                self.line = SharedLine(aging=config.aging, fair=config.fair, weights=weights)
            else:
                self.line = PlainLine()
            for job in jobs:
                self.line.add(job)
        elif isinstance(self.line, SharedLine) and config.weights != self.config.weights:
            self.line.set_weights(dict(config.weights))
        super().set_config(config, now)
        self.defaults = config.job_defaults
        if config.limiter is not None:
            self.concurrency = math.inf  # the limit is the limiter's, which is asked for each token
        self.update_plain()

    @property
    def waiting(self) -> int:
        return len(self.bound) + len(self.delayed)

    @property
    def active(self) -> int:
        return self.slots + len(self.without_slot)

    @property
    def is_in_use(self) -> bool:
        if self.waiting or self.active or self.room_line:
            return True
        # It would come to life again with the pause of its template.
        return self.pause != (NOT_PAUSED if self.template is None else self.template.pause)

    def relabel(self, label: str) -> None:
        """Be the lane of ``label`` from now on: its name, or the template that it comes from."""
        self.label, self.from_template = label, label != self._name

    def set_template(self, template: Pausable | None) -> None:
        """Come from ``template``, or from none."""
        self.template = template

    def inherit_pause(self, template: Pausable) -> None:
        """Begin with the pause of ``template``; the timer is set when this lane is alive."""
        self.paused_by_config = template.paused_by_config
        self.paused_by_hand = template.paused_by_hand
        self.paused_until = template.paused_until
        self.paused = template.paused

    def join(self, group: Group | None) -> None:
        """Be in ``group`` from now on, with the tokens that its jobs hold, or in none."""
        self.group = group
        if group is not None:
            group.take_tokens(self.label, self.slots)
        self.update_plain()

    def update_plain(self) -> None:
        """Set ``plain`` anew: its configuration, or its group, has changed."""
        self.wake_at = math.inf
        self.plain = (
            isinstance(self.line, PlainLine)
            and self.token_request is None
            and self.group is None
            and not self.rates.units
        )

    def waiting_jobs(self) -> Iterable[AnyJob]:
        return chain(self.bound.values(), self.delayed.values())

    def running_jobs(self) -> list[AnyJob]:
        borrowers = self.limiter.statistics().borrowers  # also others', where it is shared
        jobs = [
            job
            for job in borrowers
            if isinstance(job, Job) and job._state is RUNNING and job._lane is self
        ]
        jobs.sort(key=lambda job: job.id)  # borrowers are in no order that comes back
        # A job that wants a slot of a shared limiter back is both, once its token is there.
        return list(dict.fromkeys([*jobs, *self.without_slot]))

    def moved_at(self) -> float:
        """Return when a job of it has started, ended or made progress last: as far as is known
        while one that waits for a slot or a token of the group is the first of its line.

        An end that has let another job start is not noted: the start is. It reads the running jobs.
        """
        moved_at = self.ended_at
        for job in self.running_jobs():
            at = job.progress_at
            moved_at = moved_at if at is None else max(moved_at, at)
        return moved_at

    # ---- long waits

    def count_room_requests(self, change: int) -> None:
        """One request for room more or less is of a job that is bound for it."""
        self.room_requests += change

    def count_own_warn_after(self) -> None:
        """A job that is bound for it has a ``warn_after`` of its own."""
        self.own_warn_after += 1

    def note_unwarned(self, job: AnyJob) -> None:
        """Note that hooks are to be called when the wait of ``job`` is long."""
        self.unwarned[job.id] = job

    def pop_unwarned(self) -> AnyJob:
        """Take out the first job of ``unwarned``: hooks are called now."""
        return self.unwarned.popitem(last=False)[1]

    def keep_warning(self, timer: Timer | None) -> None:
        """Keep the timer of its oldest wait; None when it has gone off."""
        self.warning = timer

    def keep_unwarned_timer(self, timer: Timer | None) -> None:
        """Keep the timer of the first of ``unwarned``; None when it has gone off."""
        self.unwarned_timer = timer

    def cancel_warnings(self) -> None:
        """Cancel the timers of long waits."""
        for timer in (self.warning, self.unwarned_timer):
            if timer is not None:
                timer.cancel()
        self.warning = self.unwarned_timer = None

    @property
    def oldest(self) -> AnyJob | None:
        """The job bound for it that has waited longest."""
        return next(iter(self.bound.values()), None)

    # ---- a job is bound for it, from its submission, or the end of its delay, to its start

    def unbind(self, job: AnyJob) -> None:
        """``job``, which was bound for it, starts or was withdrawn."""
        del self.bound[job.id]
        if job._options is not NO_EXTRAS and job._options.warn_after is not None:
            self.own_warn_after -= 1
        if self.unwarned:
            self.unwarned.pop(job.id, None)

    def forget_warnings(self, job: AnyJob) -> None:
        """``job``, which is bound for it, is watched by other options from now on."""
        self.own_warn_after -= job._options.warn_after is not None
        self.unwarned.pop(job.id, None)

    def postpone(self, job: AnyJob) -> None:
        """Keep ``job`` until its delay is over; it is not bound for the lane until then."""
        self.delayed[job.id] = job
        if job._log is not None:
            self.left_line[job] = None
        self.touch()  # its requests for room are to be served

    def forget_delay(self, job: AnyJob) -> None:
        """The delay of ``job`` is over, or the job was withdrawn."""
        del self.delayed[job.id]
        if job._log is not None:
            self.left_line[job] = None

    # ---- requests for room

    def take_room_request(self, request: RoomRequest) -> None:
        super().take_room_request(request)
        if not request.job._options.delay:
            line = self.room_by_session.setdefault(request.session, OrderedDict())
            line[request.job] = request
            if len(line) == 1:
                self.room_heads.add(request.order, request.session)

    def drop_room_request(self, request: RoomRequest) -> None:
        super().drop_room_request(request)
        if request.job._options.delay:
            return
        heads, line = self.room_heads, self.room_by_session[request.session]
        del line[request.job]
        # If it is not there, another is the first of its session, or the session is held: then
        # `look_at_requests_of` puts the next one there.
        if request.order in heads.items:
            heads.remove(request.order)
            if line:
                heads.add(_first(line).order, request.session)
        if not line:
            del self.room_by_session[request.session]

    def look_at_requests_of(self, session: SessionActor) -> None:
        """``session`` was served, and may forward a job again: see `free_requests`."""
        line = self.room_by_session.get(session)
        if line and (order := _first(line).order) not in self.room_heads.items:
            self.room_heads.add(order, session)

    def free_requests(self) -> Iterator[RoomRequest]:
        """Iterate over the requests in its line whose sessions are not held, in order.

        A session that is held now is served when that ends, and the loop then looks at the lane.
        """
        heads, lines = self.room_heads, self.room_by_session
        while heads.items and _is_held(heads.best()):
            heads.remove(heads.best_rank())  # until then
        if heads.items:
            first = _first(lines[heads.best()])
            yield first  # mostly it is enough, and the other sessions are not read
            others = [lines[session].values() for session in heads.items.values()]
            for request in merge(*others, key=attrgetter("order")):
                if request is not first and not _is_held(request.session):
                    yield request

    # ---- the line

    def receive(self, job: AnyJob, arrival: int) -> None:
        """Accept ``job``, behind its equals of earlier arrivals. It is mail until the next step."""
        job._arrival = arrival
        mailbox = self.mailbox
        mailbox.send(job)
        mailbox.count += 1
        # Without a free slot, a plain lane need not take a step for it.
        if not (self.touched or (self.plain and self.slots >= self.concurrency)):
            self.touched = True
            self.turns.append(self)

    def step(self) -> None:
        mailbox = self.mailbox
        while mailbox.count:
            mailbox.count -= 1
            self.line.add(mailbox.receive())

    def before(self, job: AnyJob) -> list[AnyJob]:
        """Return the jobs of the line that start before ``job`` if no other job comes."""
        self.step()
        return self.line.before(job)

    def line_with(self, job: AnyJob, way: Displacement) -> Line:
        """Return the line as it would be if ``job`` came now, and others made ``way`` for it."""
        self.step()
        line = self.line.copy()
        for other in way.leave:
            if other._lane is self:
                line.remove(other)
        for peer, arrival in way.moved.items():
            line.move(peer, arrival)
        job._arrival = way.arrival  # of a job that is not submitted: nobody else reads it
        line.add(job)
        return line

    def remove(self, job: AnyJob) -> int:
        """Take ``job`` out of the line; return the arrival that it had."""
        self.step()
        self.line.remove(job)
        arrival, job._arrival = job._arrival, 0
        if job._log is not None:
            self.left_line[job] = None
        self.touch()
        return arrival

    def move(self, job: AnyJob, arrival: int) -> None:
        """Give ``job``, which is in the line, another arrival."""
        self.step()
        self.line.move(job, arrival)
        job._arrival = arrival
        self.touch()

    def readmit(self, job: AnyJob, arrival: int) -> None:
        """Put ``job``, which runs, into the line again: before all jobs of its priority."""
        self.readmitting += 1
        self.receive(job, arrival)
        self.touch()  # also if it has no free slot: it has another head now

    def withhold(self, job: AnyJob) -> None:
        """Take ``job``, which is to be readmitted, out of the line, if it stands there."""
        if job._arrival:
            self.remove(job)
            self.readmitting -= 1

    # ---- which job starts next

    def begin_turn(self) -> None:
        """The loop serves it now: take the mail. A plain lane without mail needs no such call."""
        self.wake_at = math.inf  # which it always is for a plain lane
        mailbox = self.mailbox
        while mailbox.count:  # as `step`, on every job's way
            mailbox.count -= 1
            self.line.add(mailbox.receive())

    def next_start(self, now: float) -> AnyJob | None:
        """Take out the job that may have a slot now.

        The loop asks after the lane has taken its mail, while a slot is free, until the answer is
        None. It need not ask a plain lane in which no job waits for one.
        """
        if self.slot_requests:
            return self._next_return()
        if self.plain:
            return None if self.paused else self.line.pop()
        head = self.head(now)
        if head is None or (self.token_request is not None and not self.token_request.take(head)):
            return None
        self.line.pop()  # the head; `pop` also ends the turn of its owner
        return head

    def head(self, now: float) -> AnyJob | None:
        """Return the head of the line if at most a shared limiter or a group stops it."""
        self.wake_at = math.inf
        if self.finished != self._noted:  # what was freed may be for a sibling, or for other code
            self._noted, self.ended_at = self.finished, now
        head = None
        if (
            self.slots < self.concurrency
            and self.line
            and not self.paused
            and not self.slot_requests
        ):
            head = self.line.best()
            when = self.rates.ready_at(head._costs, now)
            if when > now:
                self.rate_until = when
                self.wake_at = self.rates.look_at(when, now)
                head = None
        if (
            head is None
            and self.token_request is not None
            # for these it asks without a head, too: `_next_return`, `wake_for`
            and not (self.slot_requests or self.room_line)
        ):
            self.token_request.rest()
        return head

    def _next_return(self) -> AnyJob | None:
        """Take out the first job that wants its slot back, if there is a slot for it."""
        self.wake_at = math.inf  # it may take the last slot: then no head waits for a rate
        job = next(iter(self.slot_requests))
        if self.group is not None and not self.group.has_budget:  # in spite of reservations
            return None
        if self.slots >= self.concurrency:
            return None
        if self.token_request is not None and not self.token_request.take(job):
            return None
        del self.slot_requests[job]
        return job

    # ---- slots

    def take_slot(self, job: AnyJob, now: float) -> None:
        """Give ``job`` the tokens of the limiter and of the group; charge it if it starts."""
        if self.token_request is None:  # else `next_start` has taken one on behalf of the job
            try:
                self.limiter.acquire_on_behalf_of_nowait(job)
            except trio.WouldBlock as error:
                raise changed_by_others(self._name) from error
        self.slots += 1
        if self.without_slot:
            self.without_slot.pop(job, None)
        if not self.plain:
            group = self.group
            if group is not None:
                group.take_tokens(self.label)
            if job._slot is not WANTED:  # else its start was charged, and this is no other start
                self.rates.charge(job._costs, now)
                if group is not None:
                    group.rates.charge(job._costs, now)
        if job._slot is QUEUED:  # it is readmitted
            job._arrival = 0
            self.readmitting -= 1
        job._slot = HELD

    def give_slot_back(self, job: AnyJob, slot: Slot) -> None:
        """Take back the tokens of ``job``, whose slot is ``slot`` from now on: NONE at its end."""
        job._slot = slot
        if slot is NONE:
            self.finished += 1
            if self.cancelling:
                self.cancelling.discard(job)
        else:
            self.without_slot[job] = None
            job._arrival = 0  # of its start; a readmission gives it another arrival
        self.slots -= 1
        if self.slots >= self.concurrency:  # which was lowered
            self.ended_at = trio.current_time()
        if self.group is not None:
            self.group.give_token_back(self.label)
        if not self.touched:
            self.touched = True
            self.turns.append(self)
        self.limiter.release_on_behalf_of(job)

    def want_slot(self, job: AnyJob, *, cancelled: bool) -> None:
        """Have ``job``, which has no slot, get a slot before all waiting jobs.

        A ``cancelled`` job goes on without a slot if no slot can come.
        """
        if job._slot is QUEUED:
            self.withhold(job)
        job._slot = WANTED
        self.slot_requests[job] = cancelled
        self.touch()

    def cancel_slot_request(self, job: AnyJob) -> None:
        """``job``, which wants its slot back, is cancelled: it goes on without if none can come."""
        self.slot_requests[job] = True
        self.touch()

    def cease_queueing(self, job: AnyJob) -> None:
        """``job``, which is not to be readmitted any more, lends its slot."""
        self.withhold(job)
        job._slot = LENT
        self.touch()

    def lend_again(self, job: AnyJob) -> None:
        """``job``, which wants its slot back, does not need it yet."""
        del self.slot_requests[job]
        job._slot = LENT
        self.touch()

    def forgo_slot(self, job: AnyJob) -> None:
        """Have ``job``, which is cancelled, go on without a slot, as none can come."""
        self.slot_requests.pop(job, None)
        job._slot = FORGONE
        self.touch()

    def drop(self, job: AnyJob) -> None:
        """``job``, which runs and holds no slot, has ended or was given up."""
        if job._slot is QUEUED:
            self.withhold(job)
        self.slot_requests.pop(job, None)
        del self.without_slot[job]
        job._slot = NONE
        self.finished += 1
        self.ended_at = trio.current_time()
        self.cancelling.discard(job)
        self.touch()

    # ---- what becomes of its jobs

    def note_cancel_called(self, job: AnyJob) -> None:
        """``job``, which runs, was asked to stop."""
        self.cancelling.add(job)

    def note_overdue(self, job: AnyJob, since: float) -> None:
        """``job`` runs although it was to stop at ``since``, long ago."""
        self.overdue[job] = since

    def forget_overdue(self, job: AnyJob) -> None:
        """``job`` has ended, or was given up."""
        self.overdue.pop(job, None)

    def count_abandoned(self, change: int) -> None:
        """One body more or less was given up by a reset, and has not ended."""
        self.abandoned += change

    def count_end(self, job: AnyJob) -> None:
        """``job`` has settled as FAILED or CANCELLED. ``finished`` is counted with its slot."""
        if job._state is FAILED:
            self.failed += 1
        else:
            self.cancelled += 1
            self.withdrawn += job.started_at is None

    # ---- a job that would arrive now

    @property
    def has_free_slot(self) -> bool:
        """Whether only its charge, or a shared limiter, can stop a job that comes now."""
        if self.paused or self.line.items or self.slot_requests:
            return False
        if self.slots >= self.concurrency:
            return False
        return self.group is None or self.group.admits(self.label)

    def starts_at_once(self, job: AnyJob, now: float) -> bool:
        """Whether ``job``, if it came now and its session let it, would not wait here."""
        if not self.has_free_slot:
            return False
        if self.plain:
            return True
        if self.token_request is not None and not self.token_request.has_token_for(job):
            return False
        return self.charged_from(job, now) <= now and not self._stands_behind(job, now)

    def wake_for(self, job: AnyJob, now: float) -> None:
        """Have the loop look again when ``job``, which may not wait here, could start."""
        if self._stands_behind(job, now):
            return  # the start of the head before it has the requests for room served
        when = self.charged_from(job, now)
        if when > now:
            self.wake_at = self.rates.look_at(when, now)
            if self.group is not None:  # the earlier of both
                self.wake_at = self.group.rates.look_at(self.wake_at, now)
        elif self.token_request is not None:
            self.token_request.ask_for(job)

    def _stands_behind(self, job: AnyJob, now: float) -> bool:
        """Whether the group has a head that ``job``, if it came now, must not overtake."""
        return self.group is not None and self.group.has_before(job._priority, now)

    def charged_from(self, job: AnyJob, now: float) -> float:
        """Return the time from which the rates let ``job`` start."""
        when = self.rates.ready_at(job._costs, now)
        return when if self.group is None else max(when, self.group.rates.ready_at(job._costs, now))

    def check_cost(
        self, costs: Mapping[str, Amount], session: Actor | None, charged: Metered | None = None
    ) -> None:
        """Refuse ``costs`` in a unit that neither this lane, its group nor ``session`` counts.

        ``charged`` is the group that was charged, if it may be another group by now.

        Raises:
          ValueError: it names the unit, and the units that are counted.
        """
        counting = (self, self.group, session, charged)
        known = [actor.rates.units for actor in counting if actor is not None]
        check_units(costs, frozenset().union(*known))


def _first(line: Mapping[AnyJob, RoomRequest]) -> RoomRequest:
    return next(iter(line.values()))


def _is_held(session: SessionActor | None) -> bool:
    return session is not None and session.is_held
