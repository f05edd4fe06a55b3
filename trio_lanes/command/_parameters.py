"""Kinds of values on the command line, as functions that read them."""

from __future__ import annotations

import math

import click


def seconds(text: str | float) -> float:
    """A finite number of seconds, from 0 up."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise click.BadParameter(f"{text!r} is no number of seconds")
    return value


def count(text: str) -> int | float:
    """A whole number from 0 up, or ``inf``."""
    if text == "inf":
        return math.inf
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a whole number from 0 up nor inf")
    return int(text)
