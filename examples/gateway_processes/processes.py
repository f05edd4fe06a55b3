"""Start the processes, and be one of them.

The command `trio-lanes worker` starts the processes, restarts those that die, and ends all by one
signal. It serves a SQLite file to them, which has one owner. All of them listen on the same port,
and the system gives each connection to one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from trio_lanes import LaneConfig, RateLimit, open_lanes
from trio_lanes.command import main as trio_lanes
from trio_lanes.command import store_named
from trio_lanes.durable import DurableLanes

from ..chat_agent.sessions import FailuresTold
from ..chat_agent.web.server import HOSTS, serve
from ..gateway.engine import TURNS
from ..gateway.serving import lanes_of, making, opening, parser
from ..gateway.websocket import MAX_FRAME
from ..openai_api.http import Requests
from ..openai_api.paste import announce
from .shared import SharedBacklog

ARGUMENTS: Final = "GATEWAY_ARGUMENTS"  # of each process, in the environment
MAX_CRASHES: Final = 20  # of one response, or of one delivery


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the gateway in several processes until a signal ends it. Return the exit code."""
    if options.durable is None:
        print("several processes need --durable FOLDER, which they share", file=sys.stderr)
        return 2
    store = options.store or f"sqlite:{options.durable / 'jobs.db'}"
    with (
        socket.socket() as reserved,  # of which the port is; it does not listen
        tempfile.TemporaryDirectory() as folder,
    ):
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((HOSTS[0], options.port))
        port = reserved.getsockname()[1]
        own = [*arguments, f"--port={port}", f"--store={store}"]
        os.environ[ARGUMENTS] = json.dumps([own, folder])
        served = []
        if store.startswith("sqlite:") and options.processes > 1:
            options.durable.mkdir(parents=True, exist_ok=True)
            served = [f"--store={store}"]
        worker = ["worker", f"{__name__}:lanes", f"--processes={options.processes}", *served]
        return trio_lanes([*worker, f"--grace={options.grace}", "--log-level=warning"])


@asynccontextmanager
async def lanes() -> AsyncIterator[DurableLanes]:
    """Serve in one of the processes, for `trio-lanes worker`."""
    own, folder = json.loads(os.environ[ARGUMENTS])
    options = parser().parse_args(own)
    rates = [] if options.rpm is None else [RateLimit(options.rpm, per=60.0)]
    durable_lanes = {
        TURNS: LaneConfig(concurrency=options.limit, max_waiting=options.waiting, rate=rates)
    }
    listener = socket.create_server((HOSTS[0], options.port), reuse_port=True)
    options.rpm = None  # counted in the store
    requests = Requests()
    async with (
        opening(options) as parts,
        open_lanes(lanes_of(options), instruments=[FailuresTold()]) as opened,
        trio.open_nursery() as beside,
    ):
        own = store_named(options.store), SharedBacklog, durable_lanes, MAX_CRASHES
        async with making(options, parts, requests, opened, beside, *own) as (app, engine, durable):
            backlog = engine.elsewhere
            assert isinstance(backlog, SharedBacklog)
            await beside.start(partial(serve, max_message=MAX_FRAME), app, listener)
            try:
                os.close(os.open(Path(folder) / "announced", os.O_CREAT | os.O_EXCL))
                announce(listener, options)
            except FileExistsError:  # by another process
                pass
            yield durable
            await opened.drain(grace=0)  # what a process does for its own clients had the grace
            backlog.leave()
            await requests.wait_none()
        beside.cancel_scope.cancel()
