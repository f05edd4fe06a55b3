"""The amounts of costs in a store: whole numbers, or decimals with millionths.

A limit that is an int counts in whole numbers, a `Decimal` in millionths: so the sums of both are
whole numbers, in Lua too. In JSON a decimal is a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from ..._config.exact import exact

Costs: TypeAlias = Mapping[str, int | Decimal]
"""{unit: amount}"""
MILLION: Final = 10**6
MAX_DECIMAL: Final = 10**9
"""The greatest amount that is counted in millionths: Lua has all of them as whole numbers."""


def scale_of(limit: object) -> int:
    """Return how many parts are 1 where a limit is counted."""
    return MILLION if isinstance(limit, Decimal) else 1


def millionths(amount: int | Decimal) -> int:
    """Return how many millionths an amount is, rounded up."""
    return counted_in(amount, MILLION)


def counted_in(amount: int | Decimal, scale: int) -> int:
    """Return an amount in parts of which ``scale`` are 1, rounded up."""
    if isinstance(amount, int):
        return amount * scale
    return -(-exact(amount) * scale // 1)


def fits(amount: int | Decimal, scale: int) -> bool:
    """Whether a limit that counts in parts, of which ``scale`` are 1, counts an amount exactly."""
    return amount <= MAX_DECIMAL if scale > 1 else counted_in(amount, 1) == amount


def decimal_of(parts: int) -> Decimal:
    """Return the amount of which there are so many millionths; no context rounds it."""
    whole, rest = divmod(abs(parts), MILLION)
    text = f"{whole}.{rest:06}".rstrip("0").rstrip(".")
    return Decimal(text if parts >= 0 else f"-{text}")


def amount_of(parts: int, scale: int) -> int | Decimal:
    """Return the amount of which there are so many parts."""
    return parts if scale == 1 else decimal_of(parts)


def difference(amount: int | Decimal, less: int | Decimal) -> int | Decimal:
    """Return the difference of two amounts; no context rounds it."""
    if isinstance(amount, int) and isinstance(less, int):
        return amount - less
    return decimal_of(millionths(amount) - millionths(less))


def to_data(costs: Costs) -> dict[str, int | str]:
    """Return what JSON can hold of costs."""
    return {
        unit: f"{amount:f}" if isinstance(amount, Decimal) else amount
        for unit, amount in costs.items()
    }


def from_data(data: Mapping[str, Any]) -> Costs:
    """Return the costs of `to_data`."""
    return {
        unit: Decimal(amount) if isinstance(amount, str) else amount
        for unit, amount in data.items()
    }
