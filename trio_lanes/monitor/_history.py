"""The last hour, also while no page was open: the numbers of each lane, in rings of fixed size.

A system task of Trio takes a sample every five seconds, and lets `Records` go on every second. It
ends with the lanes. So what an hour costs does not depend on what the jobs do.
"""

from __future__ import annotations

import logging
import math
import time
from array import array
from typing import Final, final

import trio

from trio_lanes import Lanes

from ._notes import Notes
from ._records import Records
from ._shown import MAX_ROWS, Frame

logger: Final = logging.getLogger("trio_lanes.monitor")

SAMPLE_SECONDS: Final = 5  # seconds
SAMPLES: Final = 720  # an hour
NUMBERS: Final = {name: name for name in ("slots", "waiting", "finished", "failed", "overdue")} | {
    "limit": "concurrency",
    "oldest": "oldest_wait",
}
"""Of a sample; -1 is the limit of a lane without one. {name: name in `LaneStatistics`}"""
_LIMIT, _OLDEST = (list(NUMBERS).index(name) for name in ("limit", "oldest"))
_WIDTH: Final = len(NUMBERS)
_ALL_LANES: Final = ""


@final
class History:
    """Samples of the lanes of one monitor."""

    def __init__(self, lanes: Lanes, notes: Notes, records: Records) -> None:
        self._lanes: Final = lanes
        self._notes: Final = notes
        self._records: Final = records
        self._rings: Final[dict[str, array[float]]] = {}  # {label, or "" for all: samples}
        self._walls: Final = array("d")  # when each was taken, on the clock of the machine
        self._taken = 0
        trio.lowlevel.spawn_system_task(self._keep, name="trio_lanes.monitor")

    async def _keep(self) -> None:
        seconds = 0
        try:
            while not self._notes.closing or not _idle(self._lanes):
                if seconds % SAMPLE_SECONDS == 0:
                    self.sample()
                self._records.next_frame()
                seconds += 1
                await trio.sleep(1)
        except Exception:  # it would end the whole run
            logger.exception("the monitor takes no more samples")

    def sample(self) -> None:
        """Take a sample, now."""
        sums: dict[str, list[float]] = {_ALL_LANES: [0.0] * _WIDTH}
        for name, lane in self._lanes.statistics().lanes.items():
            values = [getattr(lane, field) for field in NUMBERS.values()]
            values[_LIMIT] = -1 if lane.concurrency == math.inf else lane.concurrency
            for key in (_ALL_LANES, self._lanes.lane(name).label):
                known = sums.setdefault(key, [0.0] * _WIDTH)
                for i, value in enumerate(values):
                    known[i] = max(known[i], value) if i == _OLDEST else known[i] + value
        place = self._taken % SAMPLES
        self._walls[place : place + 1] = array("d", [time.time()])
        for label, numbers in sums.items():
            if label in self._rings or len(self._rings) <= MAX_ROWS:
                ring = self._rings.setdefault(label, array("d", bytes(8 * SAMPLES * _WIDTH)))
                ring[place * _WIDTH : (place + 1) * _WIDTH] = array("d", numbers)
        for label in self._rings.keys() - sums.keys():  # of a template that has no lane now
            self._rings[label][place * _WIDTH : (place + 1) * _WIDTH] = array("d", [0.0] * _WIDTH)
        self._taken += 1

    def hour(self, label: str) -> Frame:
        """Return the samples of ``label``, or of all lanes, and all notes, the oldest first."""
        first = max(0, self._taken - SAMPLES)
        places = [number % SAMPLES for number in range(first, self._taken)]
        ring = self._rings.get(label, self._rings.get(_ALL_LANES, array("d")))
        return {
            "columns": list(NUMBERS),
            "labels": [key for key in self._rings if key != _ALL_LANES],
            "label": label if label in self._rings else _ALL_LANES,
            "walls": [round(self._walls[place]) for place in places],
            "samples": [
                [round(value, 1) for value in ring[place * _WIDTH : (place + 1) * _WIDTH]]
                for place in places
            ],
            "notes": list(self._notes.notes),
        }


def _idle(lanes: Lanes) -> bool:
    now = lanes.statistics()
    return not (now.waiting or now.active or now.abandoned)
