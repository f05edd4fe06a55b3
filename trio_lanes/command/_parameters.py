"""The types of command-line values, as functions that parse them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import click

from .. import RateLimit
from .._config.extras import how_to_install
from .._config.names import SESSION_PREFIX
from ..durable._options.names import checked_name
from ._exits import CommandError


def seconds(text: str | float) -> float:
    """Parse a finite number of seconds, from 0 up."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise click.BadParameter(f"{text!r} is not a number of seconds")
    return value


def seconds_or_inf(text: str | float) -> float:
    """Parse a number of seconds above 0, which may be infinite."""
    if str(text).strip().lower() == "inf":
        return math.inf
    value = seconds(text)
    if not value:
        raise click.BadParameter(f"{text!r} must be above 0")
    return value


def moment(text: str) -> float:
    """Parse a time: ISO 8601, in local time unless it has an offset. Return Unix time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (OSError, OverflowError, ValueError):
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-11-22T09:30 or 2026-11-22"
        ) from None


def name(text: str) -> str:
    """Parse a lane or ``session:KEY``; refuse an empty name, as from an unset shell variable."""
    bare = text.strip()
    while bare.startswith(SESSION_PREFIX):
        bare = bare[len(SESSION_PREFIX) :].strip()
    if bare in ("", "schedule:"):
        raise click.BadParameter(f"{text!r} names neither a lane nor a session")
    kept(bare)
    return text


def kept(text: str) -> str:
    """Parse a name that every store can keep."""
    try:
        return checked_name("a name", text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def count(text: str) -> int | float:
    """Parse a whole number from 0 up, or ``inf``."""
    if text == "inf":
        return math.inf
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a whole number from 0 up nor inf")
    return int(text)


def rate(text: str) -> RateLimit:
    """Parse a rate limit: the amount and ``per``, then options of `RateLimit`."""
    amounts, *given = text.split(",")
    try:
        limit, each = amounts.split("/")
        per: Any = each if each in ("day", "month") else _number(each)
        options: dict[str, Any] = dict(option.split("=", 1) for option in given)
        if "burst" in options:
            options["burst"] = _amount(options["burst"])
        return RateLimit(_amount(limit), per, **options)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"{text!r} is not a rate such as 500/60 or 90000/60,unit=tokens ({error})"
        ) from None


def _amount(text: str) -> int | Decimal:
    return int(text) if text.isdecimal() else Decimal(text)


def _number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)


def reserve(text: str) -> tuple[str, int]:
    """Parse a lane and how many slots are kept for it."""
    lane, equals, tokens = text.rpartition("=")
    if not (equals and lane and tokens.isascii() and tokens.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a lane and a number, such as cron=1")
    return lane, int(tokens)


def amount(text: str) -> tuple[str, int | Decimal]:
    """Parse a unit and an amount of it."""
    unit, equals, number = text.rpartition("=")
    try:
        if equals:
            return kept(unit), _amount(number)
    except (ArithmeticError, ValueError):
        pass
    raise click.BadParameter(f"{text!r} is not a unit and an amount, such as usd=2.50")


def weight(text: str) -> tuple[str, float]:
    """Parse an owner, or a template of owners, and its weight."""
    owner, equals, number = text.rpartition("=")
    try:
        if equals:
            return kept(owner), _number(number)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not an owner and a number, such as gold=4")


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME: VALUE`` of each option ``--header``.

    Raises:
      CommandError: if a text is not of that form.
    """
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not (colon and name.strip() and text.isascii() and text.isprintable()):
            raise CommandError("--header is not of the form NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def check_package() -> None:
    """Check that the package is there by which a page is asked.

    Raises:
      CommandError: if it is not.
    """
    if find_spec("httpx2") is None:
        raise CommandError(how_to_install("this", "httpx2", "command"))
