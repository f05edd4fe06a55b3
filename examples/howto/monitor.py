"""A web application with a page over its lanes, at /lanes/."""

import os

import hypercorn
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from trio_lanes import Lanes, open_lanes
from trio_lanes.monitor import Role, monitor


def who(connection: HTTPConnection) -> Role | None:
    roles: dict[str, Role] = {
        os.environ["OPERATOR_KEY"]: "operate",
        os.environ["READER_KEY"]: "read",
    }
    return roles.get(connection.cookies.get("key", ""))


def application(lanes: Lanes) -> Starlette:
    return Starlette(routes=[Mount("/lanes", monitor(lanes, authorize=who))])


async def main() -> None:
    async with open_lanes({"main": 4, "cron": 1}) as lanes:
        await hypercorn.trio.serve(application(lanes), hypercorn.Config())  # type: ignore[arg-type]


if __name__ == "__main__":
    trio.run(main)
