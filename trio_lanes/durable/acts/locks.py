"""Requests for locks and quotas, which wait in lines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from ... import RateLimit
from .._contract.act import Act, Question
from .._contract.amounts import Costs, difference, to_data
from .._contract.errors import BudgetSpentError, StoreUnavailableError
from .._contract.protocol import ServedAt
from .._contract.records import QuotaLevel, left_of
from .._rules import lines, rates
from .._rules.queues import Queues
from .._rules.tables import QUOTAS, ListItem


class Acquire(Act[tuple[int, ServedAt | None] | None], leased=True):
    """Ask for a lock. The answer is the number of the request, and its fence, or None if it waits.

    Requests have a lock in the order in which they came; those that are shared have it together.
    The fence is greater than every earlier one of the lock. A request ends with `Release`, or with
    the incarnation of this instance. None: the incarnation has ended.
    """

    key: str
    shared: bool
    job: int | None = None
    """The job whose run asks, for `BlockersOf` and `AllStatistics`."""

    def apply(self, queues: Queues) -> tuple[int, ServedAt | None] | None:
        if not queues.is_alive(queues.caller):
            return None
        request = lines.make_request(queues, f"lock {self.key}", json.dumps(self.shared), self.job)
        queues.tables.put_request(request)
        lines.serve_lock(queues, request.line)
        return lines.answer_of(queues, request.id)


class Spend(Act[tuple[int, ServedAt | None, tuple[str, ...]] | None], leased=True):
    """Take costs, by unit, from a quota. The answer is the number of the request, and the time.

    That is the store's time at which they were taken; None if the request waits. They are taken
    when all limits admit them, in the order of the requests. The number is 0 if they were taken at
    once: there is no request then. With it come the units of `rates.newly_low`. None: the
    incarnation has ended.
    """

    quota: str
    limits: Sequence[RateLimit]
    """The same of all instances. What they remember is kept under the quota's name."""
    costs: Costs
    job: int | None = None
    template: str | None = None
    """The name under which the store notes the limits; None: that of the quota."""
    wait: bool = True
    """Whether the request may wait; else it raises `BudgetSpentError`."""

    def apply(self, queues: Queues) -> tuple[int, ServedAt | None, tuple[str, ...]] | None:
        if not queues.is_alive(queues.caller):
            return None
        line = f"quota {self.quota}"
        if not self.wait:
            until = lines.refused_until(queues, line, self.limits, self.costs)
            if until is not None:
                levels = rates.levels(queues.tables, line, self.limits, queues.now)
                never = until == math.inf
                raise BudgetSpentError(self.quota, left_of(levels), None if never else until)
        lines.remember(queues, self.template or self.quota, self.limits)
        data = json.dumps([rates.to_json(self.limits), to_data(self.costs)])
        request = lines.make_request(queues, line, data, self.job)
        first = lines.first_of(queues, line)
        if first is None and lines.charged(queues, request):
            # served at once, it is not kept: nothing is left to release
            return 0, queues.now, rates.newly_low(queues.tables, line, self.limits, queues.now)
        queues.tables.put_request(request)
        if first is not None:
            lines.serve_quota(queues, line)  # its time may have come
        return *lines.answer_of(queues, request.id), ()


class Release(Act[tuple[str, ...]]):
    """End a request, whether it waits or was served. The answer is that of `rates.newly_low`."""

    request: int
    used: bool
    """False gives back what was taken from the quota."""

    def apply(self, queues: Queues) -> tuple[str, ...]:
        request = queues.tables.request(self.request)
        lines.release(queues, self.request, self.used)
        if not self.used or request is None or not request.is_for_quota:
            return ()
        limits = rates.from_json(json.loads(request.data)[0])
        return rates.newly_low(queues.tables, request.line, limits, queues.now)


class Withdraw(Act[None]):
    """Take back what `Acquire` or `Spend` did under a ticket, or void the ticket: never do it.

    It is for a caller that got no answer. A copy of the act that comes later is refused with
    `StoreUnavailableError`.
    """

    ticket: str
    """That of the act, not of this one."""
    quota: str | None
    """None: it asked for a lock."""
    limits: Sequence[RateLimit]
    costs: Costs

    def apply(self, queues: Queues) -> None:
        tables = queues.tables
        (done,) = tables.answer(self.ticket, queues.now) or (None,)
        if done is not None and not isinstance(done, Exception):
            request, served, *_ = done
            if request:
                lines.release(queues, request, used=False)
            else:
                line = f"quota {self.quota}"
                meters = rates.meters_of(tables, line, self.limits)
                rates.give_back(tables, meters, self.costs, queues.now, served)
                lines.wake_first(queues, line)
        tables.put_answer(self.ticket, StoreUnavailableError("the act was withdrawn"), queues.now)


class Settle(Act[tuple[str, ...]]):
    """Change the costs that were taken at a time: less than 0 gives back, more takes now.

    The answer is that of `rates.newly_low`.
    """

    quota: str
    limits: Sequence[RateLimit]
    at: ServedAt
    change: Costs
    template: str | None = None

    def apply(self, queues: Queues) -> tuple[str, ...]:
        lines.remember(queues, self.template or self.quota, self.limits)
        line = f"quota {self.quota}"
        less = {unit: difference(0, amount) for unit, amount in self.change.items() if amount < 0}
        more = {unit: amount for unit, amount in self.change.items() if amount > 0}
        meters = rates.meters_of(queues.tables, line, self.limits)
        rates.give_back(queues.tables, meters, less, queues.now, self.at)
        rates.charge(queues.tables, meters, more, queues.now)
        lines.wake_first(queues, line)
        return rates.newly_low(queues.tables, line, self.limits, queues.now)


class Grant(Act[None]):
    """Let the limits of a quota that count a unit admit more until their windows end, once.

    It is recorded in the log ``grants``.
    """

    quota: str
    limits: Sequence[RateLimit]
    amounts: Costs
    record: str
    """JSON."""

    def apply(self, queues: Queues) -> None:
        tables, line = queues.tables, f"quota {self.quota}"
        rates.grant(
            tables, rates.meters_of(queues.tables, line, self.limits), self.amounts, queues.now
        )
        number = tables.last_item("log grants") + 1
        tables.append("log grants", ListItem(number, self.record, queues.caller))
        lines.wake_first(queues, line)


class ResetQuota(Act[bool]):
    """Forget what was spent from a quota; the first request that waits is served again.

    The answer is False if the store knows no such quota, or nothing of a quota of a template is in
    use.
    """

    quota: str

    def apply(self, queues: Queues) -> bool:
        limits, line = lines.limits_of(queues.tables, self.quota), f"quota {self.quota}"
        if limits is None:
            return False
        levels = rates.levels(queues.tables, line, limits, queues.now)
        for meter in rates.meters_of(queues.tables, line, limits):
            queues.tables.forget_marks(meter.key)
            queues.tables.forget_marks(f"low {meter.key}")
        lines.wake_first(queues, line)
        return self.quota in queues.tables.of(QUOTAS) or any(level.used for level in levels)


class LevelsOf(Question[tuple[QuotaLevel, ...]]):
    """How much is in use of each limit of a quota, by the limits of the caller.

    Without limits, by those that were applied last; it is empty if the store knows none.
    """

    quota: str
    limits: Sequence[RateLimit] = ()

    def answer(self, queues: Queues) -> tuple[QuotaLevel, ...]:
        limits = self.limits or lines.limits_of(queues.tables, self.quota) or ()
        return rates.levels(queues.tables, f"quota {self.quota}", limits, queues.now)
