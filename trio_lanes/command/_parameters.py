"""Kinds of values on the command line, as functions that read them."""

from __future__ import annotations

import math

import click

from .._config.names import SESSION_PREFIX


def seconds(text: str | float) -> float:
    """A finite number of seconds, from 0 up."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise click.BadParameter(f"{text!r} is no number of seconds")
    return value


def name(text: str) -> str:
    """A lane, or ``session:KEY``; not what is left of it when a shell's variable is not set."""
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
    """A whole number from 0 up, or ``inf``."""
    if text == "inf":
        return math.inf
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a whole number from 0 up nor inf")
    return int(text)
