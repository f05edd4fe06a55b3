"""A server for the page alone, under hypercorn."""

from __future__ import annotations

import logging
import socket
from functools import partial
from typing import Final

import hypercorn
import hypercorn.trio
import trio

from trio_lanes import Lanes
from trio_lanes.durable import DurableLanes

from ._app import monitor
from ._guard import Authorize, is_loopback_host

logger: Final = logging.getLogger("trio_lanes.monitor")


async def serve_monitor(
    lanes: Lanes,
    *,
    durable: DurableLanes | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    authorize: Authorize | None = None,
    title: str = "lanes",
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page over ``lanes`` until cancelled. A checkpoint.

    ::

        url = await nursery.start(serve_monitor, lanes)

    Args:
      port: 0 takes a free one; ``nursery.start`` returns the URL.
      durable, authorize, title: as for `monitor`.

    Raises:
      ValueError: if ``host`` is not loopback and there is no ``authorize``.
      OSError: if the address is in use.
    """
    if authorize is None and not is_loopback_host(host):
        raise ValueError(
            f"a monitor on {host!r} can be reached from other machines: give it authorize="
        )
    app = monitor(lanes, durable=durable, authorize=authorize, title=title)
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}/"
    config = hypercorn.Config()
    config.graceful_timeout = 0.1
    config.errorlog = None
    with listener:
        while True:
            config.bind = [f"fd://{listener.dup().detach()}"]
            has_begun = False
            try:
                async with trio.open_nursery() as nursery:
                    serving = partial(hypercorn.trio.serve, app, config, mode="asgi")  # type: ignore[arg-type]
                    await nursery.start(serving)
                    has_begun = True
                    task_status.started(url)
                    task_status = trio.TASK_STATUS_IGNORED
            except* Exception:
                if not has_begun:
                    raise  # a restart would fail, too
                # On Trio, an unexpected message of one client ends hypercorn completely.
                logger.exception("the server of the monitor has failed; it is restarted")
