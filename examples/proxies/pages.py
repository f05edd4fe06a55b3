"""The pages that nginx.conf and Caddyfile, in this folder, show at ops.example.org."""

from functools import partial
from typing import Any

import hypercorn
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.routing import Mount

from trio_lanes import Lanes, open_lanes
from trio_lanes.monitor import monitor, serve_monitor

HOSTS = ["ops.example.org"]


async def serve_pages(
    lanes: Lanes,
    ports: tuple[int, ...] = (8000, 8001, 8765, 8766),
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    **options: Any,  # authorize= or key=, for each page
) -> None:
    async def serve(port: int, root_path: str = "") -> None:
        """Serve an application whose page is at /lanes/."""
        page = monitor(lanes, hosts=HOSTS, **options)
        config = hypercorn.Config()
        config.bind, config.root_path = [f"127.0.0.1:{port}"], root_path
        app = Starlette(routes=[Mount("/lanes", page)])
        await nursery.start(hypercorn.trio.serve, app, config)

    alone = partial(serve_monitor, lanes, hosts=HOSTS, **options)
    async with trio.open_nursery() as nursery:
        # https://ops.example.org/lanes/
        await serve(ports[0])
        # https://ops.example.org/shop/lanes/
        await serve(ports[1], root_path="/shop")
        # https://ops.example.org/jobs/
        await nursery.start(partial(alone, port=ports[2], prefix="/jobs"))
        # https://ops.example.org:8443/
        await nursery.start(partial(alone, port=ports[3]))
        task_status.started()


async def main() -> None:
    async with open_lanes({"main": 4}) as lanes:
        await serve_pages(lanes)


if __name__ == "__main__":
    trio.run(main)
