"""`Submission`: one job of `DurableLanes.submit_many`; and checks of a job's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal, final

import attrs

from ... import Coalesce
from ..._config import check as _check
from ..._config.exact import exact
from ..._limits.rate import REQUESTS
from .._contract.amounts import MAX_DECIMAL, MILLION, Costs
from .._contract.records import SubmittedJob
from .names import checked_name
from .retry import RetryPolicy

MAX_AMOUNT: Final = 10**12
"""The greatest amount. Sums of amounts stay whole numbers in every store."""


@final
@attrs.frozen(kw_only=True)
class Submission:
    """One job to submit: an argument of `DurableLanes.submit_many`.

    The fields are the arguments of `DurableLanes.submit`.
    """

    name: str
    payload: object = None
    session: str | None = None
    lane: str = "main"
    priority: int = 0
    key: str | None = None
    key_after: Literal["result_ttl", "failure"] = "result_ttl"
    coalesce: Coalesce | None = None
    delay: float = 0.0
    run_at: float | None = None
    expires: float | None = None
    timeout: float = attrs.field(default=math.inf, converter=_check.or_inf)
    retry: RetryPolicy | None = None
    cost: int | Decimal | Costs = 1
    owner: str | None = None


def checked_priority(priority: Any) -> int:
    """Return a priority; raise an error unless it is -1, 0 or 1."""
    if _check.whole("priority", priority) not in (-1, 0, 1):
        raise ValueError(f"priority must be -1, 0 or 1, got {priority!r}")
    return priority  # type: ignore[no-any-return]  # whole() has checked it


def checked_key_after(key_after: Any, key: str | None) -> Literal["result_ttl", "failure"]:
    """Return ``key_after``; raise an error if it is neither word, or there is no key."""
    if key_after not in ("result_ttl", "failure"):
        raise ValueError(f"key_after must be 'result_ttl' or 'failure', not {key_after!r}")
    if key is None and key_after == "failure":
        raise ValueError("key_after='failure' needs a key, got key=None")
    return key_after  # type: ignore[no-any-return]  # it is one of the two


def check_coalesce(coalesce: Any, **excluded: Any) -> None:
    """Check that a store can keep a ``coalesce``, and that no option that it excludes is given.

    Raises:
      TypeError: if it is no `Coalesce`, or its key is no text.
      ValueError: if another option is given that it excludes, or the key is no name.
    """
    if not isinstance(coalesce, Coalesce):
        raise TypeError(f"coalesce must be a Coalesce or None, not {coalesce!r}")
    checked_name("the key of coalesce", coalesce.key)
    for option, value in excluded.items():
        if value:
            raise ValueError(f"{option} and coalesce exclude each other, got {value!r}")


def checked_expires(expires: Any, delay: float) -> float | None:
    """Return after how many seconds a job expires; raise an error if it could never begin."""
    if expires is not None and _check.finite_seconds("expires", expires) <= delay:
        raise ValueError(f"expires must be longer than the delay of {delay!r} s, got {expires!r}")
    return expires  # type: ignore[no-any-return]  # finite_seconds() has checked it


def checked_cost(cost: Any) -> Costs | None:
    """Return the amounts of a cost by unit, requests among them; None: one request alone.

    Raises:
      TypeError: if it is neither an amount nor a mapping of units to amounts.
      ValueError: for a blank unit, or one that a store could not keep; for a bad amount.
    """
    if type(cost) is int and cost == 1:
        return None
    if not isinstance(cost, Mapping):
        cost = {REQUESTS: checked_amount("cost", cost)}
    costs: dict[str, int | Decimal] = {REQUESTS: 1}
    for unit, amount in cost.items():
        if not checked_name("a unit of cost", unit).strip():
            raise ValueError(f"a unit of cost must not be blank, got {unit!r}")
        costs[unit] = checked_amount(f"cost of {unit!r}", amount)
    return None if costs == {REQUESTS: 1} else costs


def checked_amount(field: str, value: Any) -> int | Decimal:
    """Return an amount that every store can count.

    Raises:
      TypeError, ValueError: if it is neither a whole number from 0 to `MAX_AMOUNT` nor a `Decimal`
        from 0 to `MAX_DECIMAL` with at most six places.
    """
    if isinstance(value, Decimal):
        if not value.is_finite() or not 0 <= value <= MAX_DECIMAL:
            raise ValueError(f"{field} must be from 0 to {MAX_DECIMAL:,}, got {value!r}")
        if value and (value.adjusted() < -6 or exact(value) * MILLION % 1):
            raise ValueError(f"{field} must have at most six places, got {value!r}")
        return value
    if _check.natural(field, value, "a whole number or a Decimal") > MAX_AMOUNT:
        raise ValueError(f"{field} must be at most {MAX_AMOUNT:,}, got {value!r}")
    return value  # type: ignore[no-any-return]  # natural() has checked it


def check_submitted(job: SubmittedJob) -> None:
    """Check a job that was submitted past `DurableLanes`, except its payload.

    Raises:
      TypeError, ValueError: as `DurableLanes.submit` does.
    """
    for field in ("name", "session", "lane", "key", "owner"):
        if (name := getattr(job, field)) is not None:
            checked_name(field, name)
    checked_priority(job.priority)
    _check.seconds("timeout", job.timeout)
    if job.retry is not None:
        RetryPolicy().with_json(job.retry)
    checked_cost(job.cost)
    checked_key_after(job.key_after, job.key)
    checked_expires(job.expires, job.delay)
