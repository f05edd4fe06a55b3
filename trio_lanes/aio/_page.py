"""The page of `trio_lanes.monitor` for an ASGI application on asyncio.

The page itself runs in the guest run, beside the lanes that it shows. What it receives and sends,
and ``authorize``, are awaited in tasks of asyncio.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from ._bodies import to_trio
from ._bridge import call

if TYPE_CHECKING:
    from trio_lanes import Lanes
    from trio_lanes.durable import DurableLanes
    from trio_lanes.monitor import Authorize


def monitor(
    lanes: Lanes,
    *,
    durable: DurableLanes | None = None,
    authorize: Authorize | None = None,
    key: str | None = None,
    hosts: Iterable[str] = (),
    prefix: str = "",
    title: str = "lanes",
) -> Callable[[Any, Any, Any], Coroutine[Any, Any, None]]:
    """Return the page over ``lanes`` as an ASGI application: ``app.mount("/lanes", ...)``.

    It needs ``trio-lanes[monitor]``. Arguments and errors: those of `trio_lanes.monitor.monitor`;
    ``authorize`` may be an async function of asyncio. When uvicorn is asked to end, open pages end.
    """
    from starlette.requests import HTTPConnection  # of an extra, as the page

    from trio_lanes import monitor as of_trio

    async def role(connection: HTTPConnection) -> Any:
        assert authorize is not None
        role = authorize(HTTPConnection(connection.scope))
        return await role if inspect.isawaitable(role) else role

    page = of_trio.monitor(
        getattr(lanes, "trio", lanes),
        durable=getattr(durable, "trio", durable),
        authorize=to_trio(role) if callable(authorize) else authorize,
        key=key,
        hosts=hosts,
        prefix=prefix,
        title=title,
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ended = False

        async def send_on(message: Any) -> None:
            nonlocal ended
            if not ended:
                ended = message.get("more_body", False) and _server_ends()
                await send({**message, "more_body": False} if ended else message)

        await call(page, scope, to_trio(receive), to_trio(send_on))

    return app


def _server_ends() -> bool:
    """Whether uvicorn was asked to end. It waits for open streams, and says so nowhere else."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
