"""What lanes do, in the log: a line for each event, with its facts as fields."""

import logging
import sys

import trio

from trio_lanes import open_lanes
from trio_lanes.instruments import LoggingInstrument


class Fields(logging.Formatter):
    """Shows some of the fields as a structured log would."""

    def format(self, record: logging.LogRecord) -> str:
        names = ("event", "lane", "job_name", "waited", "ran", "error")
        known = {name: getattr(record, name) for name in names if hasattr(record, name)}
        return " ".join(f"{name}={value}" for name, value in known.items())


async def turn(number: int) -> None:
    await trio.sleep(number)


async def main() -> None:
    events = logging.getLogger("gateway.lanes")
    events.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Fields())
    events.handlers = [handler]
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument(events)]) as lanes:
        lanes.start_soon(turn, 2)
        lanes.submit_nowait(turn, 1, queue_timeout=1)


if __name__ == "__main__":
    trio.run(main)
