"""Locks and quotas: requests of instances, which wait in lines.

Each lock has a line, and each quota has one. A request joins the tail; it is served when it is the
first that waits, and its lock is free or the rates of its quota admit its costs. The number of a
request wakes the task that waits for it, as the number of a job does.

A request belongs to an incarnation. It ends when it is released, or with its incarnation: so the
lease keeps a lock, and the end of the lease frees it. The request of a quota that is served at once
is not kept.

Invariants, true between any two transactions:

1. The served requests of a lock are all shared, or are one.
2. The requests of a line are served in the order of their numbers. So every served request of a
   lock is before every one that waits.
3. The first request that waits for a lock cannot be served. That of a quota can be, as soon as
   its time comes: the task that waits for it knows the time, and asks again then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ... import RateLimit
from . import rates
from .queues import Queues
from .request import Request


def acquire(
    queues: Queues, instance: str, key: str, shared: bool, job: int | None
) -> tuple[int, float | None]:
    """Ask for a lock; return the number of the request, and its fence, or None if it waits."""
    request = _request(queues, f"lock {key}", instance, json.dumps(shared), job)
    queues.tables.put_request(request)
    _serve_lock(queues, request.line)
    return _answer(queues, request.id)


def _request(queues: Queues, line: str, instance: str, data: str, job: int | None) -> Request:
    number = queues.tables.next_number()
    return Request(number, line, instance, data, job=job, since=queues.now)


def spend(
    queues: Queues,
    instance: str,
    quota: str,
    limits: Sequence[RateLimit],
    costs: Mapping[str, int],
    job: int | None,
) -> tuple[int, float | None]:
    """Take costs from a quota; return the number of the request, and when it was charged.

    The time is None if it waits. The number is 0 if it was charged at once: it is not kept.
    """
    _remember(queues, quota, limits)
    data = json.dumps([rates.to_json(limits), dict(costs)])
    request = _request(queues, f"quota {quota}", instance, data, job)
    first = _first(queues, request.line)
    if first is None and _charged(queues, request):
        return 0, queues.now
    queues.tables.put_request(request)
    if first is not None:
        _serve_quota(queues, request.line)  # its time may have come
    return _answer(queues, request.id)


def _remember(queues: Queues, quota: str, limits: Sequence[RateLimit]) -> None:
    """Note the limits of a quota, which say what its marks mean."""
    if queues.tables.quotas().get(quota) != tuple(limits):
        queues.tables.put_quota(quota, tuple(limits))


def _answer(queues: Queues, id: int) -> tuple[int, float | None]:
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
        first, due = _serve_quota(queues, request.line)
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
            limits, costs = _terms(request)
            meters = rates.quota_meters(request.line, limits)
            rates.give_back(queues.tables, meters, costs, queues.now, request.served)
        _wake_first(queues, request.line)
    else:
        _serve_lock(queues, request.line)


def settle(
    queues: Queues, quota: str, limits: Sequence[RateLimit], at: float, change: Mapping[str, int]
) -> None:
    """Change the costs that were taken from a quota at a time."""
    _remember(queues, quota, limits)
    line = f"quota {quota}"
    less = {unit: -amount for unit, amount in change.items() if amount < 0}
    more = {unit: amount for unit, amount in change.items() if amount > 0}
    meters = rates.quota_meters(line, limits)
    rates.give_back(queues.tables, meters, less, queues.now, at)
    rates.charge(queues.tables, meters, more, queues.now)
    _wake_first(queues, line)


def reset(queues: Queues, quota: str) -> bool:
    """Forget what was spent from a quota; return whether anything is known of it."""
    limits, line = queues.tables.quotas().get(quota), f"quota {quota}"
    if limits is None:
        return False
    for meter in rates.quota_meters(line, limits):
        queues.tables.forget_marks(meter.key)
    _wake_first(queues, line)
    return True


def end_requests(queues: Queues, instance: str) -> None:
    """End the requests of an incarnation that is gone."""
    for request in queues.tables.requests_of(instance):
        release(queues, request.id, used=True)


def _wake_first(queues: Queues, line: str) -> None:
    """Have the task of the first request ask again: it may be served earlier than it knows."""
    first = _first(queues, line)
    if first is not None:
        queues.ended.append((first.id, None))


def _serve_lock(queues: Queues, line: str) -> None:
    tables = queues.tables
    while (request := _first(queues, line)) is not None:
        holder = tables.first_request(line, served=True)
        if holder is not None and "false" in (holder.data, request.data):
            return
        request.served, request.since = tables.next_number(), queues.now
        tables.put_request(request)
        queues.ended.append((request.id, None))


def _serve_quota(queues: Queues, line: str) -> tuple[int, float]:
    """Charge requests while the rates admit the first; return the next, and the seconds until then.

    The number is 0 if there is none.
    """
    tables, served = queues.tables, False
    while (request := _first(queues, line)) is not None:
        if not _charged(queues, request):
            if served:
                queues.ended.append((request.id, None))  # it is the first now
            return request.id, ready_at(queues, request) - queues.now
        served = True
        request.served = request.since = queues.now
        tables.put_request(request)
        queues.ended.append((request.id, None))
    return 0, 0.0


def _first(queues: Queues, line: str) -> Request | None:
    """Return the first request that waits; requests of instances without a lease are dropped."""
    while (request := queues.tables.first_request(line, served=False)) is not None:
        until = queues.tables.lease_of(request.instance)
        if until is not None and until > queues.now:
            break
        _drop(queues, request)
    return request


def _drop(queues: Queues, request: Request) -> None:
    queues.tables.drop_request(request.id)
    queues.ended.append((request.id, None))  # a task may wait for it


def _charged(queues: Queues, request: Request) -> bool:
    """Charge a request if the rates of its quota admit it now; return whether they do."""
    if ready_at(queues, request) > queues.now:
        return False
    limits, costs = _terms(request)
    meters = rates.quota_meters(request.line, limits)
    rates.charge(queues.tables, meters, costs, queues.now)
    return True


def ready_at(queues: Queues, request: Request) -> float:
    """Return when the rates of its quota admit a request."""
    limits, costs = _terms(request)
    return rates.ready_at(queues.tables, rates.quota_meters(request.line, limits), costs)


def _terms(request: Request) -> tuple[Sequence[RateLimit], Mapping[str, int]]:
    limits, costs = json.loads(request.data)
    return rates.from_json(limits), costs
