"""The time of a store in a file: the same for all processes of a machine, and never set back.

It begins as Unix time. From then on it follows the machine's monotonic clock. So setting the wall
clock moves no delay and no backoff, not even between two processes that open the file before and
after. When the machine starts anew, its monotonic clock does too: the store's time then continues
with the wall clock, or from its last value if that is later.

A ``run_at`` is Unix time: the jobs that have one follow the wall clock, within a second.
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
    """The readings of the machine's clocks at one moment."""

    boot: str
    """The id of the machine's last start; blank if it is unknown."""
    machine: float
    """Seconds of the monotonic clock."""
    wall: float
    """Unix time."""


def this_moment() -> Moment:
    """Read the clocks."""
    try:
        boot = BOOT_ID.read_text("ascii").strip()
    except OSError:
        boot = ""
    return Moment(boot, time.monotonic(), time.time())
