"""The types of command-line values, as functions that parse them."""

from __future__ import annotations

import math
from datetime import datetime

import click

from .._config.names import SESSION_PREFIX


def seconds(text: str | float) -> float:
    """Parse a finite number of seconds, from 0 up."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise click.BadParameter(f"{text!r} is not a number of seconds")
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
    try:
        text.encode()
    except UnicodeEncodeError:
        bare = ""
    if not bare:
        raise click.BadParameter(f"{text!r} names neither a lane nor a session")
    return text


def count(text: str) -> int | float:
    """Parse a whole number from 0 up, or ``inf``."""
    if text == "inf":
        return math.inf
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a whole number from 0 up nor inf")
    return int(text)
