"""A global lane: it starts jobs, as many at once as its limiter has tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, final

import trio

from .actor import Actor, Floor
from .._queue.backlog import Backlog
from .options import LaneConfig
from .job import AnyJob, Job
from .line import Line, PlainLine, SharedLine
from .mailbox import Mailbox
from .._limits.rate import check_units
from .shared_limiter import Asker
from .state import RUNNING
from .._queue.timers import Timer

if TYPE_CHECKING:
    from .group import Group
    from .._waiting.room import Entrant
    from .session import SessionActor
    from .template import Template


@final
class LaneActor(Actor):
    """The lane that runs jobs of one kind, over all sessions.

    A job is *bound for* it from submission to start. Those that may start as far as their session
    goes stand in its line; the others are still in their sessions, or not due yet.

    A job starts when nothing stops it: not a pause, not a lack of tokens of the limiter or of the
    group, not a rate limit. What it needs is taken together, and charged, in `Floor.start`.
    """

    __slots__ = (
        "_name",
        "_order",
        "asker",
        "bound",
        "delayed",
        "entrants",
        "exempt",
        "finished",
        "from_template",
        "group",
        "label",
        "lending",
        "line",
        "mailbox",
        "plain",
        "readmitting",
        "returning",
        "room_by_session",
        "room_heads",
        "slots",
        "started",
        "warning",
    )

    limiter: trio.CapacityLimiter

    def __init__(self, floor: Floor, name: str, label: str, config: LaneConfig) -> None:
        self._name = name
        self.label = label  # its name, or the template that it comes from
        self.from_template = label != name  # whether it comes and goes, as session lanes do
        self.mailbox = Mailbox()
        self.line: Line = PlainLine()
        self._order = (float("inf"), False)  # aging, and whether it is fair
        self.delayed: dict[int, AnyJob] = {}  # {id: job that is not due yet}
        # {job that runs without a slot: whether it will want one back}
        self.lending: dict[AnyJob, bool] = {}
        # {id: job}, in the order in which their waits began, in both layers. A dict would take
        # linear time to find its first item after many deletions at the front.
        self.bound: OrderedDict[int, AnyJob] = OrderedDict()
        self.exempt = 0  # of these: jobs with a warn_after of their own
        self.slots = 0  # tokens of the limiter that its jobs hold
        # {job that has lent its slot, and wants it back: whether it is cancelled meanwhile}
        self.returning: OrderedDict[AnyJob, bool] = OrderedDict()
        self.asker: Asker | None = None  # for a limiter that is shared
        self.group: Group | None = None
        # {session: {job: who waits for room in this lane}}: what `room_line` has, by session, but
        # for jobs with a delay, which never start at once
        self.room_by_session: dict[SessionActor | None, OrderedDict[AnyJob, Entrant]] = {}
        # Of these sessions: those that may let theirs start, by the places of the first of them
        self.room_heads: Backlog[SessionActor | None] = Backlog()
        self.entrants = 0  # jobs that wait for room before they are bound for it
        self.readmitting = 0  # running jobs that stand in its line again
        self.started = 0  # jobs, ever
        self.finished = 0  # jobs that had started, ever
        self.warning: Timer | None = None  # set for the oldest wait
        super().__init__(floor, floor.lane_turns, config)
        self.limiter = trio.CapacityLimiter(config.concurrency)
        self.set_config(config)

    @property
    def name(self) -> str:
        return self._name

    @property
    def pause_at_birth(self) -> tuple[bool, float | None]:
        template = self.floor.templates.get(self.label)
        return super().pause_at_birth if template is None else template.pause

    def inherit_pause(self, template: Template) -> None:
        """Begin with the pause of ``template``; the timer is set when this lane is alive."""
        self.paused_by_hand = template.paused_by_hand
        self.paused_until = template.paused_until
        self.paused = template.paused

    def set_config(self, config: LaneConfig) -> None:
        if self.warning is not None and config.warn_after != self.config.warn_after:
            self.warning.cancel()  # the next step sets it anew
            self.warning = None
        if self.asker is not None and config.limiter is not self.limiter:
            self.asker.rest()
        if config.limiter is None:
            if self.asker is not None:
                self.limiter, self.asker = trio.CapacityLimiter(config.concurrency), None
        elif self.limiter is not config.limiter:
            self.limiter = config.limiter
            self.asker = Asker(config.limiter, self.floor.spawn, self._token_came)
        if (config.aging, config.fair) != self._order:  # else the owners keep their turns
            self._order = (config.aging, config.fair)
            jobs = sorted(self.line.jobs(), key=lambda job: job._arrival)
            if config.fair or config.aging != float("inf"):
                self.line = SharedLine(aging=config.aging, fair=config.fair)
            else:
                self.line = PlainLine()
            for job in jobs:
                self.line.add(job)
        super().set_config(config)
        self.find_out_whether_plain()

    def find_out_whether_plain(self) -> None:
        """Plain is a lane that only its own limiter and a pause can stop."""
        self.plain = (
            isinstance(self.line, PlainLine)
            and self.asker is None
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
        # One that wants a slot of a shared limiter back is both, from when its token is there.
        return list(dict.fromkeys([*jobs, *self.lending]))

    def take_mail(self) -> None:
        """Give the jobs in the mailbox their places in line."""
        self.mailbox.empty_into(self.line.add)

    def before(self, job: AnyJob) -> list[AnyJob]:
        """The jobs in line that would start before ``job`` if nothing else came."""
        self.take_mail()
        return self.line.before(job)

    def remove(self, job: AnyJob) -> None:
        """Take ``job`` out of line; its arrival is the caller's to keep or to give away."""
        self.take_mail()
        self.line.remove(job)

    def move(self, job: AnyJob, arrival: int) -> int:
        """Give ``job``, which is in line, another arrival; its former one."""
        self.take_mail()
        former = job._arrival
        self.line.move(job, arrival)
        self.floor.touch(self)
        return former

    def readmit(self, job: AnyJob) -> None:
        """Put ``job``, which runs, in line again: before all that has its priority."""
        job._arrival = self.floor.next_return()
        self.readmitting += 1
        self.mailbox.send(job)
        self.floor.touch(self)

    def withhold(self, job: AnyJob) -> None:
        """Take ``job``, which was readmitted, out of line."""
        self.remove(job)
        self.readmitting -= 1
        job._arrival = 0
        self.floor.touch(self)

    def step(self) -> None:
        if self.mailbox.count:
            self.take_mail()
        if self.returning:
            self.give_slots_back()
        floor = self.floor
        # Nothing is kept over a start, which may call a hook that configures this very lane, or a
        # session, which takes back what it does not let go any more before anything else starts.
        turns = floor.session_turns
        while self.plain and self.line.items and self.slots < self.concurrency and not self.paused:
            if turns:
                floor.touch(self)
                break
            floor.start(self.line.pop())
        group = self.group
        if group is not None:
            group.offer(self)
            floor.touch(group)
        elif not self.plain:
            while (head := self.ready_head()) is not None and self.group is group:
                if turns:
                    floor.touch(self)
                    break
                if not self.start_head(head):
                    break
        if self.warning is None:
            if len(self.bound) > self.exempt:
                floor.warn_later(self)
        elif not self.active and not self.bound:
            # Not as soon as nothing waits: in a busy lane that is so every other moment.
            self.warning.cancel()
            self.warning = None
        if self.watched and not (self.waiting and self.active):
            floor.watches.look_at(self)
        if self.from_template and not self.entrants and self.is_idle:
            floor.retire(self)

    def starts_at_once(self, job: AnyJob) -> bool:
        """Whether ``job``, if it came now and its session let it, would not wait here."""
        if not self.may_start_newcomers:
            return False
        if self.plain:
            return True
        if self.asker is not None and not self.asker.has_token_for(job):
            return False
        now = trio.current_time()
        return self._charged_from(job, now) <= now and not self._stands_behind(job, now)

    @property
    def may_start_newcomers(self) -> bool:
        """Whether nothing stops one that comes now but its charge, or a shared limiter."""
        if self.paused or self.line.items or self.returning:
            return False
        if self.asker is None and self.slots >= self.concurrency:
            return False
        return self.group is None or self.group.admits(self.label)

    def look_out_for(self, job: AnyJob) -> None:
        """Look again when ``job``, which may not wait here, could start, for all it knows of."""
        now = trio.current_time()
        if self._stands_behind(job, now):
            return  # the step of the group that starts the head before it is looked at
        when = self._charged_from(job, now)
        if when > now:
            self.look_again_for_head(when)
        elif self.asker is not None:
            self.asker.ask_for(job)

    def _stands_behind(self, job: AnyJob, now: float) -> bool:
        """Whether the group has a head that ``job``, if it came now, must not overtake."""
        return self.group is not None and self.group.has_before(job._priority, now)

    def _charged_from(self, job: AnyJob, now: float) -> float:
        """When the rates let ``job`` start."""
        when = self.rates.ready_at(job._costs, now)
        return when if self.group is None else max(when, self.group.rates.ready_at(job._costs, now))

    def ready_head(self) -> AnyJob | None:
        """The head of the line, if nothing of this lane but its limiter stops it."""
        head, when = None, self.floor.now
        has_slot = self.asker is not None or self.slots < self.concurrency
        if has_slot and self.line and not self.paused and not self.returning:
            head = self.line.best()
            when = self.rates.ready_at(head._costs, self.floor.now)
        if when > self.floor.now:
            self.wait_for_rate(when)
            head = None
        else:
            self.wait_for_no_rate()
        if head is None and self.asker is not None and not (self.returning or self.room_line):
            self.asker.rest()
        return head

    def start_head(self, head: AnyJob) -> bool:
        """Start ``head``, the head of the line; False if it lacks a token of a shared limiter."""
        if self.asker is not None and not self.asker.take(head):
            return False
        self.line.pop()  # which is the head; only so its owner has had its turn
        self.floor.start(head)
        return True

    def give_slots_back(self) -> None:
        """Give jobs that lent their slots new ones: before all that waits, pauses or not."""
        while self.returning:
            job = next(iter(self.returning))
            if self.group is not None and not self.group.has_budget:
                break
            if self.asker is None:
                if self.slots >= self.concurrency:
                    break
            elif not self.asker.take(job):
                break
            del self.returning[job]
            self.floor.regained(job)
        if any(self.returning.values()) and self.floor.never_comes(next(iter(self.returning))):
            for job in [job for job, cancelled in self.returning.items() if cancelled]:
                del self.returning[job]
                self.floor.goes_without(job)
        if self.group is not None:
            if self.returning:
                self.group.returning[self] = None
            else:
                self.group.returning.pop(self, None)

    def let_go(self) -> None:
        """Have nobody wait for a slot any more: no step is taken that could give one."""
        if self.asker is not None:
            self.asker.rest()
        while self.returning:
            job, _ = self.returning.popitem()
            self.floor.goes_without(job)

    def take_tokens(self, job: AnyJob, *, charge: bool = True) -> None:
        """Give ``job`` a token of the limiter and one of the group, and charge it."""
        if self.asker is None:  # else one was taken before, on behalf of this job
            self.limiter.acquire_on_behalf_of_nowait(job)
        self.slots += 1
        if not self.plain:
            now, group = self.floor.now, self.group
            if group is not None:
                group.used[self.label] += 1
            if charge:
                self.rates.charge(job._costs, now)
                if group is not None:
                    group.rates.charge(job._costs, now)

    def give_tokens_back(self, job: AnyJob) -> None:
        """Take back what `take_tokens` gave, but for the charge."""
        self.limiter.release_on_behalf_of(job)
        self.slots -= 1
        if self.group is not None:
            self.group.used[self.label] -= 1
            self.floor.touch(self.group)
        self.floor.touch(self)

    def check_cost(
        self, costs: Mapping[str, float], session: Actor | None, charged: Group | None = None
    ) -> None:
        """Refuse ``costs`` in a unit that neither this lane, its group nor ``session`` counts.

        ``charged`` is the group that was charged, if it may be another one.

        Raises:
          ValueError: naming the unit, and those that are counted.
        """
        counting = (self, self.group, session, charged)
        known = [actor.rates.units for actor in counting if actor is not None]
        check_units(costs, frozenset().union(*known))

    def _token_came(self) -> None:
        with self.floor.transition():
            self.floor.touch(self)

    @property
    def oldest(self) -> AnyJob | None:
        """The job bound for it that has waited longest."""
        return next(iter(self.bound.values()), None)
