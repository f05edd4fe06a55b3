"""Work without a session, which a process does for its own client, in a place among all turns.

The place is a durable job, so it counts in the limit over all processes. Only the process that
wants it has the handler of the job: the job holds the place until the work is over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import trio

from trio_lanes import Job, LaneError, Lanes
from trio_lanes.durable import DurableLanes, StoreError, StoreUnavailableError

from ..gateway.backlog import OPEN, ROOM_SECONDS, WITHDRAW_SECONDS
from ..gateway.engine import PLACED, TURNS
from ..openai_api.wire import new_id

logger: Final = logging.getLogger(__name__)
SWEEP_SECONDS: Final = 60.0
PREFIX: Final = "place_of"


class Places:
    """The places of one process."""

    def __init__(self, lanes: Lanes) -> None:
        self.durable: DurableLanes  # set when it is open
        self.handler: Final = new_id(PREFIX)  # its name
        self._lanes: Final = lanes
        self._wanted: Final[dict[str, tuple[trio.Event, trio.Event]]] = {}  # {id: begun, over}

    def begin(self, work: Callable[..., Awaitable[object]], *args: Any, **more: Any) -> Job[None]:
        """Do work in a job with a place: `Engine.begin`."""

        async def placed() -> None:
            async with self._place():
                await work(*args)

        more.pop("owner", None)  # the store is not fair by owners
        return self._lanes.submit_nowait(placed, lane=PLACED, **more)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        id = new_id("place")
        begun, over = self._wanted[id] = trio.Event(), trio.Event()
        job = None
        try:
            submit = partial(self.durable.submit, self.handler, id, lane=TURNS, key=id)
            while job is None:
                try:
                    job = await submit()
                except StoreUnavailableError:  # the client waits as long as it likes
                    await trio.sleep(ROOM_SECONDS)
            await begun.wait()
            yield
        finally:
            over.set()
            del self._wanted[id]
            if job is not None and not begun.is_set():
                # a run of what is not withdrawn ends at once, since nobody wants its place
                with suppress(StoreError), trio.move_on_after(WITHDRAW_SECONDS, shield=True):
                    await self.durable.cancel(job.id)

    async def hold(self, id: str) -> None:
        """Hold a place until its work is over: the handler of the jobs."""
        if id in self._wanted:
            begun, over = self._wanted[id]
            begun.set()
            await over.wait()

    async def sweep(self) -> None:
        """Cancel the jobs of processes that have died, which no process would run."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            try:
                alive = {name for one in await self.durable.instances() for name in one.names}
                for job in await self.durable.jobs(TURNS, states=OPEN, limit=-1):
                    if job.name.startswith(PREFIX) and job.name not in alive:
                        await self.durable.cancel(job.id)
            except LaneError as error:  # tried again
                logger.warning("the places of dead processes are not cleared yet: %s", error)
