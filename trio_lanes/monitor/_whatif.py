"""What another limit would have done in the last minutes: a replay, in a process of its own.

The recording is made of the records of ended jobs, as far back as they are complete, and of the
jobs that wait and run now. So there is one only after a page has been open for some time, and none
for a burst of which the ring has left jobs out.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final, final

import trio

from trio_lanes import Lanes

from ..replay import Recording
from ..replay._capture import LimitHistory, RunFacts, facts_of
from ..replay._recording import write_recording
from ._guard import RefusedError
from ._records import Records
from ._shown import Frame, clipped

REPLAYED_SECONDS: Final = 600.0  # seconds
_FEWEST: Final = 5  # jobs
_MAX_WAITING: Final = 2000
_REPLAY_SECONDS: Final = 30.0  # seconds that a replay may take


@final
class WhatIf:
    """Replays the last minutes of lanes, one replay at a time."""

    def __init__(self, lanes: Lanes, records: Records) -> None:
        self._lanes: Final = lanes
        self._records: Final = records
        self._limits: Final = LimitHistory()
        self._running: Final = trio.Lock()
        lanes.add_instrument(self._limits)

    async def ask(self, lane: str, limit: int) -> Frame:
        """Return the waits as they were, and as they would have been with ``limit``.

        Raises:
          RefusedError: if there is nothing to replay, or another replay is under way.
        """
        if self._running.locked():
            raise RefusedError(429, "another replay is under way; ask again")
        async with self._running:
            recording = self._recording()
            if lane not in recording.lanes:
                raise RefusedError(404, f"{clipped(lane)} had no jobs in the last minutes")
            with tempfile.TemporaryDirectory(prefix="trio-lanes-") as folder:
                file = Path(folder, "last.jsonl")
                await trio.to_thread.run_sync(write_recording, recording, file)
                figures = await _replayed(file, {lane: limit})
        return {"jobs": len(recording.jobs), "seconds": round(recording.seconds), **figures}

    def _recording(self) -> Recording:
        if self._lanes.statistics().waiting > _MAX_WAITING:
            raise RefusedError(409, f"more than {_MAX_WAITING} jobs wait: a replay takes too long")
        since = max(self._records.since, trio.current_time() - REPLAYED_SECONDS)
        runs = [record.run for record in self._records.ring if _end(record.run) >= since]
        if len(runs) < _FEWEST:
            raise RefusedError(
                409, "too few jobs have ended while a page was open; ask again later"
            )
        return self._limits.recording([*runs, *self._present()])

    def _present(self) -> Iterable[RunFacts]:
        for job in self._lanes.jobs():
            yield facts_of(job, None, self._records.steps.of_slot(job.id))


async def _replayed(file: Path, limits: dict[str, int]) -> Frame:
    command = [sys.executable, "-m", "trio_lanes.replay", str(file), json.dumps(limits)]
    run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
    with trio.move_on_after(_REPLAY_SECONDS):
        done = await run(command)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise RefusedError(500, f"the replay failed: {clipped(why, 200)}")
        found: Frame = json.loads(done.stdout)
        return found
    raise RefusedError(503, f"the replay took longer than {_REPLAY_SECONDS:.0f} s")


def _end(run: RunFacts) -> float:
    return math.inf if run.finished is None else run.finished
