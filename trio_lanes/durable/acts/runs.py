"""Acts of a run, under its fence, and messages to runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._contract.act import Act, Lookups
from .._contract.protocol import EVENTS_KEPT, MESSAGES_KEPT
from .._contract.state import CANCELLED, PARKED, RUNNING, WAITING
from .._rules import lines
from .._rules.budget import Budget
from .._rules.job_record import HOLDS_SLOT, LENT_SLOT, WANTS_SLOT
from .._rules.queues import Queues
from .._rules.tables import ListItem


class Compare(Act[tuple[tuple[int, ...], tuple[int, ...], int]], leased=True):
    """Compare what an instance has with what the store has, which may have come back older.

    What the store has besides is given back, or ended if it is a request: its end was lost, and
    nobody would report it again. This may come late or twice, since it says up to where the
    instance knows: what it gets later has a greater number. The answer is what the store lacks: the
    fences of runs, and the numbers of requests; and the last number that it has given out, so that
    the next comparison knows up to there. All are empty if the incarnation has ended.
    """

    runs: Sequence[int]
    """The fences of the runs whose ends are not recorded."""
    claimed_to: int
    """A number below the fence of each claim whose step has no answer yet."""
    requests: Sequence[int]
    """The numbers of requests for locks and quotas that are not released."""
    requested_to: int
    """A number below that of each request whose answer is not known yet."""

    def apply(self, queues: Queues) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        if not queues.is_alive(queues.caller):
            return (), (), 0
        tables, here = queues.tables, set(self.runs)
        runs = tables.fences_of(queues.caller)
        for fence in sorted(runs.keys() - here, reverse=True):  # each goes to the front
            if fence <= self.claimed_to:
                job = tables.get(runs[fence])
                assert job is not None
                queues.give_back(job)
        here -= runs.keys()
        asked = set(self.requests)
        requests = {request.id for request in tables.requests_of(queues.caller)}
        for id in sorted(requests - asked):
            if id <= self.requested_to:
                lines.release(queues, id, used=True)
        return tuple(sorted(here)), tuple(sorted(asked - requests)), tables.last_number()


class Checkpoint(Act[bool], leased=True):
    """Keep data for the next attempt; False if the fence is no longer the run's."""

    id: int
    fence: int
    data: str

    def apply(self, queues: Queues) -> bool:
        job = queues.run_of(self.id, self.fence)
        if job is not None:
            queues.tables.update(job, checkpoint=self.data)
        return job is not None


class Take(Act[bool | None], leased=True):
    """Keep data for the next attempt, and end jobs of the run's session; all or nothing.

    The answer is True if it is done; False if one of the jobs neither waits nor is parked in the
    session; None if the fence is no longer the run's.
    """

    id: int
    fence: int
    data: str
    taken: Mapping[int, str]
    """The outcome, as JSON text, of each job that ends, by its id."""

    @property
    def lookups(self) -> Lookups:
        return Lookups(ids=[self.id, *self.taken])

    def apply(self, queues: Queues) -> bool | None:
        job = queues.run_of(self.id, self.fence)
        if job is None:
            return None
        others = [queues.tables.get(other) for other in self.taken]
        for other in others:
            if (
                other is None
                or other.session is None
                or other.session != job.session
                or other.state not in (WAITING, PARKED)
            ):
                return False
        queues.tables.update(job, checkpoint=self.data)
        for other in others:
            assert other is not None
            queues.end(other, CANCELLED, self.taken[other.id])
        return True


class LendSlot(Act[bool], leased=True):
    """Free the slot of a run; False if the fence is no longer the run's."""

    id: int
    fence: int

    def apply(self, queues: Queues) -> bool:
        job = queues.run_of(self.id, self.fence)
        if job is not None:
            queues.tables.update(job, lent=LENT_SLOT)
            queues.work_ready = True
        return job is not None


class RegainSlot(Act[bool | None], leased=True):
    """Take the slot back: False if no slot is free; None if the fence is not the run's.

    A run that got False goes ahead of every claim; the caller tries again after each step.
    """

    id: int
    fence: int

    def apply(self, queues: Queues) -> bool | None:
        job = queues.run_of(self.id, self.fence)
        if job is None:
            return None
        if job.lent == HOLDS_SLOT:
            return True
        if job.lent == LENT_SLOT:
            queues.tables.update(job, lent=WANTS_SLOT)
        if Budget(queues.tables, queues.now).return_refused_by(job):
            return False
        queues.tables.update(job, lent=HOLDS_SLOT)
        return True


class EmitEvent(Act[int | None], leased=True):
    """Keep an event of a run (JSON text), for tasks that read the events of its job.

    The answer is its number: a job's events are counted from 1, over all attempts. None: the fence
    is no longer the run's. The last ``EVENTS_KEPT`` events are kept, as long as the job.
    """

    id: int
    fence: int
    event: str

    def apply(self, queues: Queues) -> int | None:
        job = queues.run_of(self.id, self.fence)
        if job is None:
            return None
        number = job.emitted + 1
        queues.tables.update(job, emitted=number)
        queues.tables.append(job.event_list, ListItem(number, self.event), EVENTS_KEPT)
        queues.news.append((job.id, None))
        return number


class Send(Act[tuple[int, int] | str]):
    """Keep a message (JSON text) for the run of a job, or for the job that runs in a session.

    The answer is the job and the message's number; a message with the same key is the same message.
    Else it is why not: ``"no_active_run"``, or ``"not_streaming"`` if the job has ``MESSAGES_KEPT``
    messages already.
    """

    session: str | None
    id: int | None
    message: str
    key: str | None

    def apply(self, queues: Queues) -> tuple[int, int] | str:
        if self.session is not None:
            job = queues.tables.head(self.session)
        else:
            job = None if self.id is None else queues.known(self.id)
        if job is None or job.state is not RUNNING:
            return "no_active_run"
        tables = queues.tables
        if self.key is not None:
            for item in tables.items(job.message_list, 0, MESSAGES_KEPT):
                if item.tag == self.key:
                    return job.id, item.number
        if job.sent >= MESSAGES_KEPT:
            return "not_streaming"
        number = job.sent + 1
        tables.update(job, sent=number)
        tables.append(job.message_list, ListItem(number, self.message, self.key, taken=False))
        queues.news.append((job.id, None))
        return job.id, number
