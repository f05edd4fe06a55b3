"""`python -m examples.gateway`: serve the API on this machine."""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial

import trio

from trio_lanes import Lanes
from trio_lanes.durable import MemoryStore, SqliteStore

from ..chat_agent.sessions import FailuresTold
from ..chat_agent.shutdown import run_with_lanes
from ..chat_agent.web.server import listen, serve
from ..openai_api.http import Requests
from ..openai_api.paste import announce
from .backlog import LANE, Backlog
from .engine import TURNS
from .serving import lanes_of, making, opening, parser
from .websocket import MAX_FRAME


async def run(options: argparse.Namespace) -> int:
    """Serve in this process until a signal comes and all turns have ended. Return the exit code."""
    listener = listen(options.port)
    jobs = SqliteStore(options.durable / "jobs.db") if options.durable else MemoryStore()
    durable_lanes = {TURNS: options.limit, LANE: math.inf}
    say, requests = partial(print, file=sys.stderr, flush=True), Requests()
    async with opening(options) as parts:

        async def work(opened: Lanes, beside: trio.Nursery) -> None:
            own = jobs, Backlog, durable_lanes, math.inf
            async with making(options, parts, requests, opened, beside, *own) as (app, *_):
                await beside.start(partial(serve, max_message=MAX_FRAME), app, listener)
                announce(listener, options)
                await opened.wait_closing()

        return await run_with_lanes(
            work, lanes_of(options), {}, say=say, grace=options.grace,
            instruments=[FailuresTold()], farewell=requests.wait_none,
        )  # fmt: skip


def main() -> int:
    """Run the gateway. Return the exit code."""
    options = parser().parse_args()
    if options.processes == 1 and options.store is None:
        return trio.run(run, options)
    from ..gateway_processes.processes import run as run_processes

    return run_processes(options, sys.argv[1:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
