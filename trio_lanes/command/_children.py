"""Worker processes, and the connection between each of them and its parent.

The connection is a pair of sockets, which carry lines. A child says which incarnations it becomes,
and that it is ready; the parent reports the incarnations of other children that have ended, whose
jobs the child gives back. A child is a process group of its own, so Ctrl-C in a terminal reaches it
once, from its parent, and not twice.

When the parent ends, in any way, the connection is cut. No worker goes on without a supervisor, and
a new one may have been started: so the child's listeners close, its bodies are cancelled at once,
without the grace that a stop has, and the process ends before its lease does, by a clock that no
body can hold up.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final, final

import trio

_READY: Final = "ready"
_JOINS: Final = "joins "
_STANDARD_ERROR: Final = 2
LISTENERS_END_AFTER: Final = 1.0
"""Seconds after the end of the parent in which the cancellation can end the tasks that listen."""
KNOWN: Final = 64
"""How many incarnations of a child its parent knows: the last ones."""


class Child:
    """A worker process, as its supervisor sees it.

    Attributes:
      instances: the incarnations that it has said it becomes.
    """

    def __init__(self, process: trio.Process, line: socket.socket) -> None:
        line.setblocking(False)
        self._process: Final = process
        self._socket: Final = line
        self._line: Final = trio.SocketStream(trio.socket.from_stdlib_socket(line))
        self._heard = b""
        self.instances: Final = deque[str](maxlen=KNOWN)
        self.pid = process.pid

    async def hear(self, ready: Callable[[], object]) -> None:
        """Hear what the process says until the connection is cut; call ``ready`` when it is."""
        with suppress(trio.BrokenResourceError):
            async for data in self._line:
                self._take(data, ready)

    def hear_rest(self) -> None:
        """Hear what the process, which has ended, said last."""
        with suppress(OSError):  # nothing more has come
            while data := self._socket.recv(4096):
                self._take(data)

    def _take(self, data: bytes | bytearray, ready: Callable[[], object] = bool) -> None:
        *lines, self._heard = (self._heard + bytes(data)).split(b"\n")
        for line in map(bytes.decode, lines):
            if line == _READY:
                ready()
            else:
                self.instances.append(line.removeprefix(_JOINS))

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or the negative number of a signal."""
        return await self._process.wait()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process, unless it has ended."""
        self._process.send_signal(signum)

    async def report_end(self, instance: str) -> None:
        """Report to the process that the process of an incarnation has ended."""
        try:
            await self._line.send_all(f"{instance}\n".encode())
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
    return Child(process, ours)


@final
class ParentConnection:
    """The child's end of the connection.

    A thread of its own reads it: so a body that holds up the process's loop does not hide the end
    of the parent.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # processes that a handler starts must not hold it
        self._socket: Final = socket.socket(fileno=descriptor)
        self._over: Final = Event()

    def say_ready(self) -> None:
        """Tell the parent that this process is ready. It never waits."""
        self._say(_READY)

    def say_joins(self, incarnation: str) -> None:
        """Tell the parent which incarnation this process is going to be, besides earlier ones."""
        self._say(_JOINS + incarnation)

    def _say(self, what: str) -> None:
        with suppress(OSError):  # the parent has ended, which the thread sees
            self._socket.send(f"{what}\n".encode(), socket.MSG_DONTWAIT)

    @contextmanager
    def heard(
        self,
        has_ended: Callable[[str], object],
        is_gone: Callable[[], object],
        time_left: Callable[[], float],
    ) -> Iterator[None]:
        """Hear the parent during the block, which must be in Trio.

        Args:
          has_ended: called with each incarnation whose end the parent reports.
          is_gone: called when the parent has ended.
          time_left: called in the thread at that moment; says in how many seconds this process must
            have ended. If it has not, the clock ends it, and writes where its threads stood.
        """
        token = trio.lowlevel.current_trio_token()
        calls = token, has_ended, is_gone, time_left
        thread = Thread(target=self._hear, args=calls, daemon=True, name="parent")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            with suppress(OSError):  # the parent has ended
                self._socket.shutdown(socket.SHUT_RDWR)
            thread.join()  # it waits for nothing else

    def _hear(
        self,
        token: trio.lowlevel.TrioToken,
        has_ended: Callable[[str], object],
        is_gone: Callable[[], object],
        time_left: Callable[[], float],
    ) -> None:
        with self._socket, suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                token.run_sync_soon(has_ended, line.decode().rstrip())
        if self._over.is_set():
            return
        end_by_clock(time_left())
        token.run_sync_soon(is_gone)
        if not self._over.wait(LISTENERS_END_AFTER):
            end_listeners()


def end_by_clock(seconds: float) -> None:
    """End this process after some time, whatever it does then.

    The clock is not Python's: it needs no thread that runs, and no lock of the interpreter.
    """
    faulthandler.dump_traceback_later(max(seconds, 0.001), exit=True, file=_STANDARD_ERROR)


def end_listeners() -> None:
    """Let no socket of this process listen any more.

    A server that the cancellation of its task has ended has closed its own.
    """
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # it is no socket, or was closed meanwhile
            copy = os.dup(int(name))
            try:
                one = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                raise
            with one:
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)
