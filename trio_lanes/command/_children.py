"""Worker processes, and the connection between each of them and its parent.

The connection is a pair of sockets. A child reports over it that it is ready; the parent reports
the ends of other children, whose jobs the child gives back. When the parent ends, in any way, the
connection is cut, and the child acts as on a SIGTERM: no worker goes on without a supervisor. A
child is a process group of its own, so Ctrl-C in a terminal reaches it once, from its parent, and
not twice.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

_READY: Final = b"r"


class Child:
    """A worker process, as its supervisor sees it."""

    def __init__(self, process: trio.Process, line: trio.SocketStream) -> None:
        self._process: Final = process
        self._line: Final = line
        self.pid = process.pid

    async def wait_ready(self) -> bool:
        """Wait until the process is ready; return False if it ends before."""
        return await self._line.receive_some(1) == _READY

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or the negative number of a signal."""
        return await self._process.wait()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process, unless it has ended."""
        self._process.send_signal(signum)

    async def report_end(self, pid: int) -> None:
        """Report to the process that another process has ended."""
        try:
            await self._line.send_all(b"%d\n" % pid)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it has ended, too: the ends of the leases give the jobs back

    async def aclose(self) -> None:
        """Cut the connection."""
        await self._line.aclose()


async def start_worker(arguments: Sequence[str]) -> Child:
    """Start ``trio-lanes worker`` with arguments and a connection to this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trio_lanes", "worker", f"--line={theirs.fileno()}", *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
    return Child(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))


@final
class ParentConnection:
    """The child's end of the connection."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # processes that a handler starts must not hold it
        end = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
        self._stream: Final = trio.SocketStream(end)

    async def say_ready(self) -> None:
        """Tell the parent that this process is ready."""
        try:
            await self._stream.send_all(_READY)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the parent has ended, which `hold` sees

    async def hold(self, has_ended: Callable[[int], None]) -> None:
        """Hold the connection, and end this process by SIGTERM when the parent has ended.

        Args:
          has_ended: called with the pid of each process whose end the parent reports.
        """
        rest = b""
        async with self._stream:
            try:
                async for data in self._stream:
                    *pids, rest = (rest + data).split(b"\n")
                    for pid in pids:
                        has_ended(int(pid))
            except trio.BrokenResourceError:
                pass
            signal.raise_signal(signal.SIGTERM)
