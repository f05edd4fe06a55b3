"""A server for the page alone, by connections of hypercorn.

Hypercorn's own server ends with all of its connections at an unexpected message of one client, for
example data on a WebSocket that was not accepted. So its connections are opened here, and each
fails alone.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import hypercorn
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from trio_lanes import Lanes
from trio_lanes.durable import DurableLanes

from .._config.names import MONITOR_KEY
from ._app import logger, page
from ._guard import Authorize, Guard, is_loopback_host

_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")


async def serve_monitor(
    lanes: Lanes,
    *,
    durable: DurableLanes | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    authorize: Authorize | None = None,
    key: str | None = None,
    hosts: Iterable[str] = (),
    prefix: str = "",
    title: str = "lanes",
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page over ``lanes`` until cancelled. A checkpoint.

    ::

        url = await nursery.start(serve_monitor, lanes)

    Args:
      host: an address, or a name of this machine. It is one of the allowed hosts, unless it stands
        for all addresses.
      port: 0 takes a free one; ``nursery.start`` returns the URL, with the key if there is one. A
        drawn key is in the log, in that URL, which is printed to standard error as well.
      durable, authorize, key, hosts, prefix, title: as for `monitor`.

    Raises:
      TypeError, ValueError: as `monitor`.
      ValueError: if ``host`` is not loopback, and there is neither ``authorize`` nor a key that
        was given.
      OSError: if the address is in use.
    """
    own = () if isinstance(hosts, str) or host in _ALL_ADDRESSES else (host,)
    guard = Guard(authorize, key, hosts if isinstance(hosts, str) else (*hosts, *own), prefix)
    if guard.has_drawn and not is_loopback_host(host):
        raise ValueError(
            f"a monitor on {host!r} can be reached from other machines: give it authorize=, key=, "
            f"or the variable {MONITOR_KEY}"
        )
    app = page(lanes, durable, guard, title)
    config = hypercorn.Config()
    config.errorlog = logger
    served, context = ASGIWrapper(app), WorkerContext(None)  # type: ignore[arg-type]

    async def connected(stream: trio.SocketStream) -> None:
        try:
            await TCPServer(served, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        except* Exception:
            logger.exception("the server of the monitor has failed at a client")

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}/"
    if guard.key:
        url += f"?key={quote(guard.key, safe='')}"
    if guard.has_drawn:
        logger.warning("the page of %r is for who has its key: %s", title, url)
        if logger.hasHandlers():  # else Python itself has printed the line
            print(url, file=sys.stderr)
    task_status.started(url)
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    await trio.serve_listeners(connected, listeners)
