"""An instrument of one's own: how long jobs wait, and a context variable that their code sees."""

from contextvars import ContextVar
from typing import Any

import trio

from trio_lanes import Job, LaneInstrument, open_lanes

request_id: ContextVar[int] = ContextVar("request_id")


class Waits(LaneInstrument):
    """Keeps the longest wait of each lane, and tells jobs who they are."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    def job_started(self, job: Job[Any]) -> None:
        """Called in the context of the job: what is set here, its body sees."""
        request_id.set(job.id)
        waited = trio.current_time() - job.submitted_at
        self.longest[job.lane] = max(waited, self.longest.get(job.lane, 0))


async def turn() -> None:
    print("request", request_id.get())
    await trio.sleep(1)


async def main() -> None:
    waits = Waits()
    async with open_lanes({"main": 1}, instruments=[waits]) as lanes:
        for _ in range(3):
            lanes.start_soon(turn)
    print(waits.longest)


if __name__ == "__main__":
    trio.run(main)
