"""A server for the page alone, by connections of hypercorn.

Hypercorn's own server ends with all of its connections at an unexpected message of one client, for
example data on a WebSocket that was not accepted. So its connections are opened here, and each
fails alone.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import hypercorn
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

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
    config = hypercorn.Config()
    config.errorlog = None
    served, context = ASGIWrapper(app), WorkerContext(None)  # type: ignore[arg-type]

    async def connected(stream: trio.SocketStream) -> None:
        try:
            await TCPServer(served, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        except* Exception:
            logger.exception("the server of the monitor has failed at a client")

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    shown = f"[{host}]" if ":" in host else host
    task_status.started(f"http://{shown}:{listener.getsockname()[1]}/")
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    await trio.serve_listeners(connected, listeners)
