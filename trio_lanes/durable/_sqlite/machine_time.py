"""The time of a store in a file: one for all processes of a machine, and never set back.

It begins as Unix time. From then on it goes with the clock of the machine that nobody can set, so
whatever is done to the wall clock moves no delay and no back-off, not even between two processes
that open the file before and after. When the machine starts anew, so does that clock: the time
goes on with the wall clock, or from where it was if that is later.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import final

import attrs

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@final
@attrs.frozen
class Moment:
    """Now, as the machine's clocks have it."""

    boot: str
    """Since which start of the machine its own clock counts; blank: that cannot be told."""
    machine: float
    """Seconds since then, or since something like it."""
    wall: float
    """Unix time."""


def this_moment() -> Moment:
    """What the clocks show."""
    try:
        boot = BOOT_ID.read_text("ascii").strip()
    except OSError:
        boot = ""
    return Moment(boot, time.monotonic(), time.time())
