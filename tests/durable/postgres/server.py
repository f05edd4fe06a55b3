"""A PostgreSQL server of the tests: on a Unix socket in a folder of its own, ended by its pid.

psycopg is imported where a server is used: `make test` runs without it.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)
"""Debian's libfaketime, if it is here."""
PATIENCE = 60.0
"""Seconds for a server to start or to stop on a busy machine."""


def programs() -> Path | None:
    """Return the folder of the newest server's programs; None: there is no server here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).parent


def _version(path: Path) -> float:
    return float(path.parts[-3])


def not_root() -> dict[str, Any]:
    """Return arguments with which a program is started as a user that is not root."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Server:
    """A server with one superuser, ``postgres``, who needs no password on the socket.

    Args:
      copy_of: the server whose standby it is.

    Attributes:
      folder: the folder of the socket and the data.
    """

    def __init__(
        self, folder_of_programs: Path, *, copy_of: Server | None = None, **settings: str
    ) -> None:
        self._programs = folder_of_programs
        # a short path, since the path of a socket has at most 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="lanes-"))
        if os.getuid() == 0:
            os.chown(self.folder, not_root()["user"], not_root()["group"])
        self.folder.chmod(0o755)
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",  # no test takes the machine's power away
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "100",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.clock: Path | None = None
        """A file with the seconds by which libfaketime changes the clock of the server."""
        data = ["-D", str(self.folder / "data"), "-U", "postgres", "--no-sync"]
        if copy_of is None:
            self._run(["initdb", *data, "-A", "trust", "-E", "UTF8", "--locale=C"])
        else:
            standby = ["-h", str(copy_of.folder), "-R", "-X", "stream", "-c", "fast"]
            self._run(["pg_basebackup", *data, *standby])

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            [self._programs / command[0], *command[1:]],
            cwd=self.folder,
            capture_output=True,
            timeout=PATIENCE,
            **not_root(),
        )
        assert done.returncode == 0, done.stderr.decode()

    @property
    def log(self) -> Path:
        """The file of the server's messages."""
        return self.folder / "log"

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the connection string of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        import psycopg

        until = time.monotonic() + PATIENCE
        while True:
            if self._process is None or self._process.poll() is not None:
                # also a second time: the processes of a server that was killed take a moment to end
                self._process = self._started()
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.05)

    def _started(self) -> subprocess.Popen[bytes]:
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        env = None
        if self.clock is not None:
            clock = {"FAKETIME_TIMESTAMP_FILE": str(self.clock), "FAKETIME_NO_CACHE": "1"}
            clock |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1"}
            assert FAKETIME is not None
            env = {**os.environ, **clock, "LD_PRELOAD": FAKETIME}
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [self._programs / "postgres", "-D", str(self.folder / "data"), *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=env,
                **not_root(),
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT ends transactions, SIGQUIT ends it at once, SIGKILL kills it."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._process = None

    def remove(self) -> None:
        """End the server, and remove its folder."""
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute a statement as superuser; again, if it was chosen to end a deadlock."""
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            while True:
                try:
                    cursor = connection.execute(statement.encode())
                except psycopg.errors.DeadlockDetected:
                    continue
                return [] if cursor.description is None else cursor.fetchall()
