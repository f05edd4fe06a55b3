"""Exact numbers: amounts as they are written, times as the clock gives them, and their rounding."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

Amount: TypeAlias = float | Decimal
"""An amount as users write it."""
Exact: TypeAlias = int | Fraction

NEVER_USED: Final = -math.inf  # the time since which an unused meter has been fully replenished


def exact(amount: Amount | Fraction) -> Exact:
    """Return the number that was written as ``amount``."""
    if isinstance(amount, (int, Fraction)):
        return amount
    if isinstance(amount, Decimal):
        number = Fraction(amount)
        return number.numerator if number.denominator == 1 else number
    return int(amount) if amount.is_integer() else Fraction(repr(float(amount)))


def rounded(amount: Exact) -> float:
    """Return the float nearest to ``amount``; an infinity beyond all floats."""
    try:
        return float(amount)
    except OverflowError:
        return math.inf if amount > 0 else -math.inf


def rounded_up(time: Fraction) -> float:
    """Return the first time of a clock that is not before ``time``."""
    try:
        rounded = float(time)
    except OverflowError:
        return math.inf
    return rounded if rounded >= time else math.nextafter(rounded, math.inf)


def bucket_shape(limit: Amount, per: float, burst: Amount | None) -> tuple[Fraction, Fraction]:
    """Return the burst of a `Bucket`, and the amount that leaks from it in a second."""
    most = Fraction(exact(limit))
    size = min(max(most / 10, Fraction(1)), most) if burst is None else Fraction(exact(burst))
    # Whole amounts reach only the whole number below a limit with a fraction; and a burst under 1
    # must not make the rate higher than the limit.
    return size, min(most, math.floor(most) + 1 - size) / Fraction(per)
