"""The cost of a job: what each of its starts takes from rates, by unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..._config import check as _check
from ..._limits.rate import REQUESTS
from .names import checked_name

MAX_AMOUNT: Final = 10**12
"""The greatest amount. Sums of amounts stay whole numbers in every store."""


def checked_cost(cost: Any) -> Mapping[str, int] | None:
    """Return the amounts of a cost by unit, requests among them; None: one request alone.

    Raises:
      TypeError: if it is neither a whole number nor a mapping of units to whole numbers.
      ValueError: for a blank unit, or one that a store could not keep; for an amount that is not
        whole, negative or above `MAX_AMOUNT`.
    """
    if type(cost) is int and cost == 1:
        return None
    if not isinstance(cost, Mapping):
        cost = {REQUESTS: _amount("cost", cost)}
    costs = {REQUESTS: 1}
    for unit, amount in cost.items():
        if not checked_name("a unit of cost", unit).strip():
            raise ValueError(f"a unit of cost must not be blank, got {unit!r}")
        costs[unit] = _amount(f"cost of {unit!r}", amount)
    return None if costs == {REQUESTS: 1} else costs


def _amount(field: str, value: Any) -> int:
    if _check.natural(field, value) > MAX_AMOUNT:
        raise ValueError(f"{field} must be at most {MAX_AMOUNT:,}, got {value!r}")
    return value  # type: ignore[no-any-return]  # natural() has checked it
