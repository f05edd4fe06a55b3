"""Locks and quotas: requests of instances, which wait in lines.

Each lock has a line, and each quota has one. A request joins the tail; it is served when it is the
first that waits, and its lock is free or the rates of its quota admit its costs. The number of a
request wakes the task that waits for it, as the number of a job does.

A request belongs to an incarnation. It ends when it is released, or with its incarnation: so the
lease keeps a lock, and the end of the lease frees it.

Invariants, true between any two transactions:

1. The served requests of a lock are all shared, or are one.
2. The requests of a line are served in the order of their numbers. So every served request of a
   lock is before every one that waits.
3. The first request that waits for a lock cannot be served. That of a quota can be, as soon as
   its time comes: the task that waits for it knows the time, and asks again then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ... import RateLimit
from ..._config.names import is_template, template_of
from .._contract.amounts import Costs, from_data
from .._contract.protocol import NAMES_LISTED
from .._contract.records import QuotaLevel
from . import rates
from .queues import Queues
from .request import Request
from .tables import QUOTAS, Tables


def make_request(queues: Queues, line: str, data: str, job: int | None) -> Request:
    """Return a new request of the caller, which is in no table yet."""
    number = queues.tables.next_number()
    return Request(number, line, queues.caller, data, job=job, since=queues.now)


def remember(queues: Queues, quota: str, limits: Sequence[RateLimit]) -> None:
    """Note the limits of a quota or a template, which say what the marks mean."""
    if queues.tables.of(QUOTAS).get(quota) != tuple(limits):
        queues.tables.put(QUOTAS, quota, tuple(limits))


def limits_of(tables: Tables, quota: str) -> tuple[RateLimit, ...] | None:
    """Return the limits of a quota that were applied last; None: the store knows none."""
    known = tables.of(QUOTAS)
    if is_template(quota):
        return None
    return known.get(quota) or known.get(template_of(quota, known) or "")


def quotas(
    tables: Tables, now: float, only: str | None = None
) -> dict[str, tuple[QuotaLevel, ...]]:
    """Return the levels of the first quotas, or one, from which something was spent, by name.

    A quota of a template is one of these as long as some of it is in use.
    """
    named = {name for name in tables.of(QUOTAS) if not is_template(name)}
    found: dict[str, tuple[QuotaLevel, ...]] = {}
    some = named | rates.names_of("quota", tables.meters()) if only is None else {only}
    for name in sorted(some):
        levels = rates.levels(tables, f"quota {name}", limits_of(tables, name) or (), now)
        if name in named or any(level.used or (only and level.granted) for level in levels):
            found[name] = levels
            if len(found) == NAMES_LISTED:
                break
    return found


def refused_until(
    queues: Queues, line: str, limits: Sequence[RateLimit], costs: Costs
) -> float | None:
    """Return until when a quota cannot give costs at once, at least; None: it can."""
    meters = rates.meters_of(queues.tables, line, limits)
    at = rates.ready_at(queues.tables, meters, costs, queues.now)
    first = first_of(queues, line)
    if first is not None:  # nothing overtakes it
        return max(at, ready_at(queues, first), queues.now)
    return at if at > queues.now else None


def answer_of(queues: Queues, id: int) -> tuple[int, float | None]:
    """Return the number of a request, and its fence or the time of its charge; None: it waits."""
    request = queues.tables.request(id)
    assert request is not None
    return id, request.served


def look(queues: Queues, id: int) -> tuple[float | None, float | None] | None:
    """Return the fence or the time of the charge of a request, and the seconds until it is due.

    The first is None if the request waits; the second is None if it waits for a lock, or another
    request is before it. None: the request has ended.
    """
    request = queues.tables.request(id)
    if request is None:
        return None
    due = None
    if request.served is None and request.is_for_quota:
        first, due = serve_quota(queues, request.line)
        if first != id:
            due = None
        request = queues.tables.request(id)
        assert request is not None
    return request.served, due


def release(queues: Queues, id: int, used: bool) -> None:
    """End a request. Unless it was used, what it has taken from its quota is given back."""
    request = queues.tables.request(id)
    if request is None:
        return
    _drop(queues, request)
    if request.is_for_quota:
        if request.served is not None and not used:
            meters, costs = _terms(queues.tables, request)
            rates.give_back(queues.tables, meters, costs, queues.now, request.served)
        wake_first(queues, request.line)
    else:
        serve_lock(queues, request.line)


def end_requests(queues: Queues, instance: str) -> None:
    """End the requests of an incarnation that is gone."""
    for request in queues.tables.requests_of(instance):
        release(queues, request.id, used=True)


def wake_first(queues: Queues, line: str) -> None:
    """Have the task of the first request ask again: it may be served earlier than it knows."""
    first = first_of(queues, line)
    if first is not None:
        queues.news.append((first.id, None))


def serve_lock(queues: Queues, line: str) -> None:
    """Serve the first requests of a lock, as far as it is free for them."""
    tables = queues.tables
    while (request := first_of(queues, line)) is not None:
        holder = tables.first_request(line, served=True)
        # one of several holders says what all are, since the served requests are shared or one
        if holder is not None and not (holder.is_shared and request.is_shared):
            return
        request.served, request.since = tables.next_number(), queues.now
        tables.put_request(request)
        queues.news.append((request.id, None))


def serve_quota(queues: Queues, line: str) -> tuple[int, float]:
    """Charge requests while the rates admit the first; return the next, and the seconds until then.

    The number is 0 if there is none.
    """
    tables, served = queues.tables, False
    while (request := first_of(queues, line)) is not None:
        if not charged(queues, request):
            if served:
                queues.news.append((request.id, None))  # it is the first now
            return request.id, ready_at(queues, request) - queues.now
        served = True
        request.served = request.since = queues.now
        tables.put_request(request)
        queues.news.append((request.id, None))
    return 0, 0.0


def first_of(queues: Queues, line: str) -> Request | None:
    """Return the first request that waits; requests of instances without a lease are dropped."""
    while (request := queues.tables.first_request(line, served=False)) is not None:
        if queues.is_alive(request.instance):
            break
        _drop(queues, request)
    return request


def _drop(queues: Queues, request: Request) -> None:
    queues.tables.drop_request(request.id)
    queues.news.append((request.id, None))  # a task may wait for it


def charged(queues: Queues, request: Request) -> bool:
    """Charge a request if the rates of its quota admit it now; return whether they do."""
    if ready_at(queues, request) > queues.now:
        return False
    meters, costs = _terms(queues.tables, request)
    rates.charge(queues.tables, meters, costs, queues.now)
    return True


def ready_at(queues: Queues, request: Request) -> float:
    """Return when the rates of its quota admit a request."""
    return rates.ready_at(queues.tables, *_terms(queues.tables, request), queues.now)


def _terms(tables: Tables, request: Request) -> tuple[list[rates.Meter], Costs]:
    limits, costs = json.loads(request.data)
    return rates.meters_of(tables, request.line, rates.from_json(limits)), from_data(costs)
