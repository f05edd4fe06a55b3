"""A service as supervisors run it: each line of its standard input is a command, and a job.

python service.py limits.toml

The first SIGTERM or Ctrl-C drains, the second cancels, SIGHUP reads the limits again, and SIGUSR1
gives up what hangs. It exits with 0 if all work that it took has ended by itself.
"""

import logging
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import trio

from trio_lanes import Lanes, LanesClosedError, open_lanes, shutdown_on_signals

GRACE = 20  # seconds
CANCEL_GRACE = 10  # more than a child process gets


async def end_group(process: trio.Process) -> None:
    """Ask a child and its children to end; end them five seconds later."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        await trio.sleep(5)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        pass


async def run(command: str) -> None:
    """A job: a child process, in a group of its own, so that a Ctrl-C is for us alone."""
    print("started:", command, flush=True)
    how = "cancelled"
    try:
        await trio.run_process(
            ["/bin/sh", "-c", command], process_group=0, deliver_cancel=end_group
        )
        how = "done"
    except subprocess.CalledProcessError as error:
        how = f"failed with {error.returncode}"
    finally:
        print(f"{how}: {command}", flush=True)


async def take_work(lanes: Lanes) -> None:
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        async for data in stdin:
            *commands, rest = (rest + data).split(b"\n")
            for command in commands:
                try:
                    lanes.submit_nowait(run, command.decode())
                except LanesClosedError as error:
                    print("refused:", command.decode(), f"({error})", flush=True)


async def main(limits: Path) -> int:
    def read_limits() -> Mapping[str, int]:
        lanes: Mapping[str, int] = tomllib.loads(limits.read_text())["lanes"]
        return lanes

    async with open_lanes(read_limits()) as lanes, trio.open_nursery() as nursery:
        nursery.start_soon(take_work, lanes)
        report = await shutdown_on_signals(
            lanes,
            grace=GRACE,
            cancel_grace=CANCEL_GRACE,
            reset_signal=signal.SIGUSR1,
            reload_signal=signal.SIGHUP,
            reload=read_limits,
        )
        nursery.cancel_scope.cancel()
    return 1 if report is None or report.cancelled or report.abandoned else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(trio.run(main, Path(sys.argv[1])))
