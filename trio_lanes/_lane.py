"""A global lane: it starts jobs, as many at once as its limiter has tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import final

import trio

from ._actor import Actor, Floor
from ._backlog import Backlog, rank
from ._config import LaneConfig
from ._job import AnyJob
from ._mailbox import Mailbox
from ._state import WAITING
from ._timers import Timer


@final
class LaneActor(Actor):
    """The lane that runs jobs of one kind, over all sessions.

    A job is *bound for* it from submission to start. Those that may start as far as their session
    goes stand in its backlog, by priority and arrival; the others are still in their sessions.
    """

    __slots__ = (
        "_name",
        "backlog",
        "bound",
        "entrants",
        "finished",
        "mailbox",
        "quiet_until",
        "started",
        "warning",
    )

    limiter: trio.CapacityLimiter

    def __init__(self, floor: Floor, name: str, config: LaneConfig) -> None:
        super().__init__(floor, config)
        self._name = name
        self.limiter = trio.CapacityLimiter(config.concurrency)
        self.mailbox = Mailbox()
        self.backlog: Backlog[AnyJob] = Backlog()
        # {id: job}, in the order in which their waits began, in both layers. A dict would take
        # linear time to find its first item after many deletions at the front.
        self.bound: OrderedDict[int, AnyJob] = OrderedDict()
        self.entrants = 0  # jobs that wait for room before they are bound for it
        self.started = 0  # jobs, ever
        self.finished = 0  # jobs that had started, ever
        self.warning: Timer | None = None  # set for the oldest wait
        self.quiet_until = -float("inf")  # when the next warning may be written to the log

    @property
    def name(self) -> str:
        return self._name

    def set_config(self, config: LaneConfig) -> None:
        if self.warning is not None and config.warn_after != self.config.warn_after:
            self.warning.cancel()  # the next step sets it anew
            self.warning = None
        super().set_config(config)

    def waiting_jobs(self) -> Iterable[AnyJob]:
        return self.bound.values()

    def send(self, job: AnyJob) -> None:
        self.mailbox.send(job)

    def take_mail(self) -> None:
        """Give the jobs in the mailbox their places in line."""
        mailbox = self.mailbox
        while mailbox.count:
            job = mailbox.take()
            if job._state is WAITING and job._arrival:
                self.backlog.add(rank(job._priority, job._arrival), job)

    def remove(self, job: AnyJob) -> None:
        """Take ``job`` out of line; its arrival is the caller's to keep or to give away."""
        self.take_mail()
        self.backlog.remove(rank(job._priority, job._arrival))

    def step(self) -> None:
        if self.mailbox.count:
            self.take_mail()
        backlog = self.backlog
        while backlog.items and self.active < self.concurrency and not self.paused:
            self.floor.start(backlog.pop())
        if self.warning is None:
            if self.bound:
                self.floor.warn_later(self)
        elif not self.active and not self.bound:
            # Not as soon as nothing waits: in a busy lane that is so every other moment.
            self.warning.cancel()
            self.warning = None

    @property
    def oldest(self) -> AnyJob | None:
        """The job bound for it that has waited longest."""
        return next(iter(self.bound.values()), None)
